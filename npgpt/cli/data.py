"""Prepare a corpus as token files."""

from npgpt.checks import check_path
from npgpt.cli.arguments import add_data_dir_argument, add_quiet_argument, add_special_argument
from npgpt.cli.training_data import print_special
from npgpt.data.corpora import in_documents, open_corpus
from npgpt.data.dataset import prepare
from npgpt.data.token_files import SEPARATOR
from npgpt.data.tokenizers import make_tokenizer
from npgpt.errors import remark

EXAMPLES = """examples:
  npgpt data prepare my.txt --out tokens                         then: npgpt train --corpus tokens
  npgpt data prepare names.txt --documents '\\n' --out names     each line is a document
"""


def add_arguments(parser):
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    prepared = actions.add_parser(
        "prepare", help="write a corpus as token files, train.bin and val.bin", epilog=EXAMPLES
    )
    prepared.add_argument("corpus", help="tinyshakespeare, pydocs, or a UTF-8 text file")
    prepared.add_argument(
        "--tokenizer",
        default="gpt2",
        help="char, byte, gpt2 (the default, as in nanoGPT; npgpt train takes char for a text) or "
        "hf:PATH_OR_ID",
    )
    prepared.add_argument("--out", required=True, help="the folder to write")
    prepared.add_argument(
        "--val-fraction",
        type=float,
        default=0.1,
        help="share of the text, at its end, for validation; by default 0.1; 0: none",
    )
    prepared.add_argument(
        "--documents",
        nargs="?",
        const=SEPARATOR,
        metavar="SEPARATOR",
        help="the text consists of documents, with SEPARATOR between them, in which \\n is a line "
        f"break; by default {SEPARATOR}. They are packed as GPT-2's were: one stream, in which "
        "each ends with the tokenizer's end of text, or else with SEPARATOR",
    )
    add_special_argument(prepared)
    add_data_dir_argument(prepared)
    add_quiet_argument(prepared)


def run_data(args):
    check_path("--out", args.out)
    corpus = open_corpus(args.corpus, args.data_dir)
    if args.documents is not None and corpus.text is not None:
        separator = args.documents.replace("\\r", "").replace("\\n", "\n").replace("\\t", "\t")
        corpus = in_documents(corpus, separator)
        remark(f"documents: {len(corpus.documents):,}")
    tokenizer = make_tokenizer(args.tokenizer, corpus.text)
    print_special(corpus, tokenizer, args.special)
    prepare(corpus, tokenizer, args.out, args.val_fraction, args.special)
    remark(
        f"{args.out}: train.bin, val.bin and their tokenizer, {args.tokenizer} (--tokenizer takes "
        f"another); train on it with: npgpt train --corpus {args.out}"
    )
