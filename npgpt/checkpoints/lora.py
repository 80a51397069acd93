"""LoRA for a model that has none: new matrices, or those of an adapter."""

import dataclasses

from npgpt.checkpoints.adapter import open_adapter
from npgpt.checks import check_whole
from npgpt.errors import UserError
from npgpt.model.parameters import initialize


def lora_added(config, read, lora_rank, lora_alpha, adapter):
    """Return (config, read) of a checkpoint with new LoRA of a rank, or an adapter's; unchanged with neither."""
    if lora_rank is lora_alpha is adapter is None:
        return config, read
    if config.lora_rank:
        raise UserError(f"the model has LoRA of rank {config.lora_rank} already: continue training it, or merge it "
                        "first with `npgpt export`")
    if adapter is None:
        check_whole("lora_rank", lora_rank, 1)
        config, load_adapter = dataclasses.replace(config, lora_rank=lora_rank, lora_alpha=lora_alpha), None
    elif lora_rank is lora_alpha is None:
        config, load_adapter = open_adapter(adapter, config)
    else:
        raise UserError("an adapter has its own rank and alpha: leave lora_rank and lora_alpha out")

    def read_both(params):
        read(params)
        initialize(params, 0, names=[name for name in params if ".lora_" in name])
        if load_adapter:
            load_adapter(params)

    return config, read_both
