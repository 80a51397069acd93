"""tools/tinystories.py by the real client, from a hub on 127.0.0.1 to npgpt's token files."""

from tinystories import FILES, main

from npgpt.data.corpora import open_corpus
from tests.data.test_dataset import open_dataset
from tests.helpers.hub_server import HubServer, point_client_at

STORIES = [
    "Once there was an owl 🦉.\n\nShe was naïve.",
    "Zoë said:\n<|endoftext|> is no word.",
    "The end.",
]


def test_stories_become_token_files(gpt2, tmp_path, monkeypatch):
    text = "\n<|endoftext|>\n".join(["", *STORIES, " "]).encode()
    with HubServer() as hub:
        point_client_at(hub, tmp_path / "home", monkeypatch)
        hub.add(
            "roneneldan/TinyStories", {name: text for name in FILES.values()}, repo_type="dataset"
        )
        assert (
            main([str(tmp_path / "stories"), "--limit", "2"]) == main([str(tmp_path / "all")]) == 0
        )
    for folder, expected in (("stories", STORIES[:2]), ("all", STORIES)):
        train, val, tokenizer = open_dataset(open_corpus(tmp_path / folder))
        ids = [token for story in expected for token in [*gpt2.encode(story), 50256]]
        assert train[:].tolist() == val[:].tolist() == ids and tokenizer.kind == "gpt2"
    assert main([str(tmp_path / "stories")]) == 2  # another content is there
