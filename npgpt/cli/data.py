"""List, download and prepare corpora."""

from npgpt.checks import check_whole
from npgpt.cli.arguments import add_data_dir_argument
from npgpt.data.corpora import data_dir, list_corpora, open_corpus
from npgpt.data.dataset import prepare
from npgpt.data.tinystories import prepare_tinystories, tinystories_folder
from npgpt.data.token_files import SEPARATOR
from npgpt.data.tokenizers import make_tokenizer
from npgpt.errors import UserError


def add_arguments(parser):
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_data_dir_argument(actions.add_parser("list", help="the named corpora, and which of them are present"))
    get = actions.add_parser("get", help="download a corpus and check its digest; tinystories becomes token files")
    get.add_argument("name", choices=("tinyshakespeare", "tinystories"))
    get.add_argument("--tokenizer", help="of tinystories: byte, gpt2 (the default) or hf:PATH_OR_ID")
    get.add_argument("--version", type=int, choices=(1, 2),
                     help="of tinystories: 2 (the default) is by GPT-4, 1 also by GPT-3.5")
    get.add_argument("--limit", type=int, metavar="N", help="of tinystories: only the first N stories of each split")
    get.add_argument("--documents", action="store_true", help="of tinystories: train on windows of one story each")
    add_windows_arguments(get)
    add_data_dir_argument(get)
    prepared = actions.add_parser("prepare", help="write a corpus as token files, train.bin and val.bin")
    prepared.add_argument("corpus", help="tinyshakespeare, pydocs, or a UTF-8 text file")
    prepared.add_argument("--tokenizer", default="gpt2",
                          help="char, byte, gpt2 (the default, as in nanoGPT; npgpt train takes char for a text) or "
                               "hf:PATH_OR_ID")
    prepared.add_argument("--out", required=True, help="the folder to write")
    prepared.add_argument("--documents", nargs="?", const=SEPARATOR, metavar="SEPARATOR",
                          help=f"train on windows of one document each; they are separated by {SEPARATOR}, or by "
                               "SEPARATOR, in which \\n is a line break")
    add_windows_arguments(prepared)
    prepared.add_argument("--val-fraction", type=float, default=0.1,
                          help="of the text, at its end, to validate on; by default 0.1; 0: none")
    add_data_dir_argument(prepared)


def add_windows_arguments(parser):
    parser.add_argument("--windows", choices=("first", "all"), default="first",
                        help="of each document: its first block_size + 1 tokens (the default), or all of it, cut into "
                             "windows that do not overlap, the last one padded")
    parser.add_argument("--count-padding", action="store_true", help="padding of a window counts in the loss")


def window_settings(args):
    """The settings of documents, a dict. Raises UserError if there are none."""
    if not args.documents and (args.windows != "first" or args.count_padding):
        raise UserError("--windows and --count-padding are of documents: add --documents")
    return {"all_windows": args.windows == "all", "count_padding": args.count_padding}


def run(args):
    if args.action == "list":
        for name, state, size, description in list_corpora(args.data_dir):
            print(f"{name:<16} {state:<15} {f'{size:,} bytes' if size else '':>16}  {description}")
    elif args.action == "prepare":
        prepare_text(args)
    elif args.name == "tinystories":
        get_tinystories(args)
    elif (args.tokenizer, args.version, args.limit, args.documents, args.windows) != (None, None, None, False, "first"):
        raise UserError(f"{args.name} is kept as text: give --tokenizer to `npgpt data prepare` or `npgpt train`")
    else:
        print(open_corpus(args.name, args.data_dir).reason)


def prepare_text(args):
    """Write a text corpus as token files."""
    corpus = open_corpus(args.corpus, args.data_dir)
    separator = args.documents and args.documents.replace("\\n", "\n")
    prepare(corpus, make_tokenizer(args.tokenizer, corpus.text), args.out, separator=separator,
            val_fraction=args.val_fraction, **window_settings(args))
    print_prepared(args.out, args.tokenizer)


def get_tinystories(args):
    """Download TinyStories and write it as token files; an interrupted call is continued."""
    name, stories = args.tokenizer or "gpt2", (args.version or 2, args.limit, args.documents)
    if args.limit is not None:
        check_whole("--limit", args.limit, 1)
    settings = window_settings(args)
    folder = tinystories_folder(data_dir(args.data_dir), name, *stories)
    folder = folder.with_name(folder.name + "".join(f"+{key}" for key in settings if settings[key]))
    prepare_tinystories(make_tokenizer(name), folder, *stories, **settings)
    print_prepared(folder, name)


def print_prepared(folder, tokenizer):
    """Print what a folder of token files holds, and how to train on it."""
    print(f"{folder}: train.bin, val.bin and their tokenizer, {tokenizer} (--tokenizer takes another); train on it "
          f"with: npgpt train --corpus {folder}")
