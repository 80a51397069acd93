"""List, download and prepare corpora."""

from npgpt.cli.arguments import add_data_dir_argument
from npgpt.errors import UserError
from npgpt.text.batches import prepare
from npgpt.text.corpora import CORPORA, list_corpora, open_corpus
from npgpt.text.tokenizers import make_tokenizer


def add_arguments(parser):
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_data_dir_argument(actions.add_parser("list", help="the corpora that have a name, and which are at hand"))
    get = actions.add_parser("get", help="download a corpus and check its digest")
    get.add_argument("name", choices=[name for name, source in CORPORA.items() if source.url])
    add_data_dir_argument(get)
    prepared = actions.add_parser("prepare", help="write a corpus as token files, train.bin and val.bin")
    prepared.add_argument("corpus", help=f"{', '.join(CORPORA)}, or a UTF-8 text file")
    prepared.add_argument("--tokenizer", default="gpt2", help="char, byte or gpt2 (the default)")
    prepared.add_argument("--out", required=True, help="the folder to write")
    add_data_dir_argument(prepared)


def run(args):
    if args.action == "list":
        for name, state, size, description in list_corpora(args.data_dir):
            print(f"{name:<16} {state:<15} {f'{size:,} bytes' if size else '':>16}  {description}")
    elif args.action == "get":
        print(open_corpus(args.name, args.data_dir).reason)
    else:
        corpus = open_corpus(args.corpus, args.data_dir)
        if corpus.text is None:
            raise UserError(f"{args.corpus} holds token files already: give a corpus that is text")
        prepare(corpus, make_tokenizer(args.tokenizer, corpus.text), args.out)
        print(f"{args.out}: train.bin, val.bin and their tokenizer; train on it with: npgpt train --corpus {args.out}")
