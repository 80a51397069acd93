"""Write a page about a model on a text: attention, logit lens, gradients (needs the extra "study").

The logit lens shows what the model would predict if it ended after each of its blocks. A loss is in
nats, the unit of a natural logarithm: 0.69 nats are a probability of one half.
"""

from npgpt.checks import writable_file
from npgpt.cli.arguments import add_block_argument, add_quiet_argument
from npgpt.cli.study import RUN, chosen_model, write_page
from npgpt.study.page.page import require_extra, study_page
from npgpt.study.page.whole_model import MOST_TOKENS, study_model

FILE = "look.html"


def add_arguments(parser):
    parser.add_argument(
        "model",
        nargs="?",
        help="a run, a folder or .safetensors file of a model, or a model of the "
        f"hub; by default the run in {RUN}, or tiny, which comes with npgpt",
    )
    parser.add_argument(
        "--prompt", required=True, help=f"the text that the model reads, 2 to {MOST_TOKENS} tokens"
    )
    add_block_argument(parser)
    add_quiet_argument(parser)
    parser.add_argument("--out", help=f"the file to write; by default {FILE}")


def run_look(args):
    require_extra()
    out = writable_file("--out", args.out or FILE)
    model, tokenizer, description = chosen_model(args.model, args.block, or_run=True)
    study = study_model(model, tokenizer, args.prompt, description)
    write_page(out, study_page([], study), follow=bool(args.out))
