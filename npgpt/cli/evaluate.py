"""Loss, perplexity and bits per byte of a model on a whole split."""

from npgpt.cli.arguments import add_data_dir_argument
from npgpt.cli.load import add_checkpoint_arguments, load_model
from npgpt.cli.training_data import open_checkpoint_data
from npgpt.errors import UserError
from npgpt.training.evaluation import evaluate_split


def add_arguments(parser):
    add_checkpoint_arguments(parser)
    parser.add_argument("--split", choices=("train", "val"), default="val", help="by default val")
    parser.add_argument("--corpus", help="another corpus than the one the model was trained on")
    add_data_dir_argument(parser)


def run(args):
    model, checkpoint = load_model(args)
    train_tokens, val_tokens = open_checkpoint_data(checkpoint, args.corpus, args.data_dir)
    tokens = train_tokens if args.split == "train" else val_tokens
    try:
        bytes_per_token, missing = checkpoint.tokenizer.bytes_per_token(), None
    except UserError as error:      # GPT-2's vocabulary is not at hand: the loss needs none
        bytes_per_token, missing = None, error
    result = evaluate_split(model, tokens, bytes_per_token)
    print(f"{checkpoint.folder}, {args.split} split: {result.tokens:,} tokens predicted")
    print(f"loss           {result.loss:.4f} nats per token")
    print(f"perplexity     {result.perplexity:.4f}")
    print(f"bits per byte  {missing or f'{result.bits_per_byte:.4f}'}")
