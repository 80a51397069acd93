/* The page's server. A page opened as a file has none: its controls then say how to start one. */

const LIVE = DATA.live;
const START = "npgpt study --open";

if (LIVE) {
  sessionStorage.setItem("npgpt-token", LIVE.token);                    // for a reload: the new address
  history.replaceState(null, "", location.pathname + location.hash);    // has neither token nor code
}

/* POST a body to the server, and return its answer. Throws an Error with one sentence. */
async function post(path, body) {
  const headers = {"Content-Type": "application/json", "X-Npgpt-Token": LIVE.token};
  const response = await fetch(path, {method: "POST", headers, body: JSON.stringify(body)}).catch(() => null);
  document.getElementById("ended").hidden = response !== null;
  if (!response) throw new Error(`the server has stopped: run ${START} again`);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

/* Requests of one kind, one at a time. While one is pending, only the newest of the others is kept. */
class Requests {
  constructor(path, onAnswer, onError) {
    Object.assign(this, {path, onAnswer, onError});
  }

  async send(body) {
    this.next = body;
    if (this.busy) return;
    this.busy = true;
    while (this.next) {
      const sent = this.next;
      this.next = null;
      try {
        this.onAnswer(await post(this.path, sent), sent);
      } catch (error) {
        this.onError(error.message);
      }
    }
    this.busy = false;
  }
}

/* Say something to a screen reader. */
const announce = (text) => document.getElementById("status").textContent = text;

/* A function that calls an action once it has not been called itself for some time. */
function debounced(milliseconds, action) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
}

function svg(tag, attributes, parent) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent?.append(element);
  return element;
}

/* The linear map from one interval to another. */
const scaled = (from, to) => (value) =>
  to[0] + (to[1] - to[0]) * (from[1] > from[0] ? (value - from[0]) / (from[1] - from[0]) : 0.5);
