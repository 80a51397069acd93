"""Prepare a corpus as token files."""

from npgpt.checks import check_path
from npgpt.cli.arguments import add_data_dir_argument
from npgpt.data.corpora import open_corpus
from npgpt.data.dataset import prepare
from npgpt.data.token_files import SEPARATOR
from npgpt.data.tokenizers import make_tokenizer
from npgpt.errors import UserError

EXAMPLES = """examples:
  npgpt data prepare my.txt --out tokens                         then: npgpt train --corpus tokens
  npgpt data prepare names.txt --documents '\\n' --out names     each line is a document
  npgpt data prepare my.txt --documents --out docs               documents separated by <|endoftext|>
"""


def add_arguments(parser):
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    prepared = actions.add_parser("prepare", help="write a corpus as token files, train.bin and val.bin",
                                  epilog=EXAMPLES)
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
                           help="train on documents one by one, on the first block_size + 1 tokens of each. They are "
                                f"separated by SEPARATOR, in which \\n is a line break; by default {SEPARATOR}")
    documents.add_argument("--end", metavar="TOKEN", help="the token that ends each document, such as [SEP], or its id")
    documents.add_argument("--pad", metavar="TOKEN", help="the token that pads short documents; by default their last")


def run(args):
    if not args.documents and (args.end or args.pad):
        raise UserError("--end and --pad apply to documents: add --documents")
    check_path("--out", args.out)
    corpus = open_corpus(args.corpus, args.data_dir)
    separator, end, pad = (text and text.replace("\\n", "\n") for text in (args.documents, args.end, args.pad))
    prepare(corpus, make_tokenizer(args.tokenizer, corpus.text), args.out, separator, args.val_fraction, end, pad)
    print(f"{args.out}: train.bin, val.bin and their tokenizer, {args.tokenizer} (--tokenizer takes another); train on "
          f"it with: npgpt train --corpus {args.out}")
