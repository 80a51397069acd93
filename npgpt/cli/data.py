"""List, download and prepare corpora."""

from npgpt.checks import check_whole
from npgpt.cli.arguments import add_data_dir_argument
from npgpt.data.corpora import data_dir, list_corpora, open_corpus
from npgpt.data.dataset import prepare
from npgpt.data.tinystories import prepare_tinystories
from npgpt.data.token_files import SEPARATOR
from npgpt.data.tokenizers import make_tokenizer
from npgpt.errors import UserError

PREPARE_EXAMPLES = """examples:
  npgpt data prepare my.txt --out tokens                         then: npgpt train --corpus tokens
  npgpt data prepare names.txt --documents '\\n' --out names     each line is a document
  npgpt data prepare my.txt --documents --windows all --out docs documents separated by <|endoftext|>
"""
GET_EXAMPLES = """examples:
  npgpt data get tinystories                                     then: npgpt train --corpus tinystories
  npgpt data get tinystories --version 1 --limit 500000 --documents
"""


def add_arguments(parser):
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_data_dir_argument(actions.add_parser("list", help="the named corpora, and which of them are downloaded"))
    get = actions.add_parser("get", help="download a corpus and check its digest; tinystories becomes token files",
                             epilog=GET_EXAMPLES)
    get.add_argument("name", choices=("tinyshakespeare", "tinystories"))
    add_data_dir_argument(get)
    stories = get.add_argument_group("for tinystories")
    stories.add_argument("--tokenizer", help="byte, gpt2 (the default) or hf:PATH_OR_ID")
    stories.add_argument("--version", type=int, choices=(1, 2),
                         help="2 (the default): stories by GPT-4 only; 1: also by GPT-3.5")
    stories.add_argument("--limit", type=int, metavar="N", help="only the first N stories of each split")
    stories.add_argument("--documents", action="store_true", help="train on windows that each lie within one story")
    add_windows_arguments(stories)
    prepared = actions.add_parser("prepare", help="write a corpus as token files, train.bin and val.bin",
                                  epilog=PREPARE_EXAMPLES)
    prepared.add_argument("corpus", help="tinyshakespeare, pydocs, or a UTF-8 text file")
    prepared.add_argument("--tokenizer", default="gpt2",
                          help="char, byte, gpt2 (the default, as in nanoGPT; npgpt train takes char for a text) or "
                               "hf:PATH_OR_ID")
    prepared.add_argument("--out", required=True, help="the folder to write")
    prepared.add_argument("--val-fraction", type=float, default=0.1,
                          help="share of the text, at its end, for validation; by default 0.1; 0: none")
    add_data_dir_argument(prepared)
    documents = prepared.add_argument_group("documents")
    documents.add_argument("--documents", nargs="?", const=SEPARATOR, metavar="SEPARATOR",
                           help="train on windows that each lie within one document. Documents are separated by "
                                f"SEPARATOR, in which \\n is a line break; by default {SEPARATOR}")
    documents.add_argument("--end", metavar="TOKEN", help="the token that ends each document, such as [SEP], or its id")
    documents.add_argument("--pad", metavar="TOKEN", help="the token that pads windows; by default the last one")
    add_windows_arguments(documents)


def add_windows_arguments(parser):
    parser.add_argument("--windows", choices=("first", "all"), default="first",
                        help="first (default): train on the first block_size + 1 tokens of each document; all: on all "
                             "of it, cut into windows that do not overlap, the last one padded")
    parser.add_argument("--count-padding", action="store_true", help="include the padding of windows in the loss")


def window_settings(args):
    """Return the settings of documents, a dict. Raises UserError if there are no documents."""
    given = args.windows != "first", args.count_padding, getattr(args, "end", None), getattr(args, "pad", None)
    if not args.documents and any(given):
        raise UserError("--windows, --count-padding, --end and --pad apply to documents: add --documents")
    return {"all_windows": args.windows == "all", "count_padding": args.count_padding}


def run(args):
    if args.action == "list":
        for name, state, description in list_corpora(args.data_dir):
            print(f"{name:<16} {state:<15} {description}")
    elif args.action == "prepare":
        corpus = open_corpus(args.corpus, args.data_dir)
        separator, end, pad = (text and text.replace("\\n", "\n") for text in (args.documents, args.end, args.pad))
        prepare(corpus, make_tokenizer(args.tokenizer, corpus.text), args.out, separator, args.val_fraction, end, pad,
                **window_settings(args))
        print_prepared(args.out, args.tokenizer)
    elif args.name == "tinystories":
        check_whole("--limit", args.limit, 1, or_none=True)
        name = args.tokenizer or "gpt2"
        print_prepared(prepare_tinystories(data_dir(args.data_dir), name, args.version or 2, args.limit, args.documents,
                                           **window_settings(args)), name)
    elif (args.tokenizer, args.version, args.limit, args.documents, args.windows, args.count_padding) != (
            None, None, None, False, "first", False):
        raise UserError(f"{args.name} is kept as text: give --tokenizer to `npgpt data prepare` or `npgpt train`")
    else:
        print(open_corpus(args.name, args.data_dir).reason)


def print_prepared(folder, tokenizer):
    """Print the contents of a folder of token files, and how to train on it."""
    print(f"{folder}: train.bin, val.bin and their tokenizer, {tokenizer} (--tokenizer takes another); train on it "
          f"with: npgpt train --corpus {folder}")
