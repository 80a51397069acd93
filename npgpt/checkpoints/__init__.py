"""GPT-2 checkpoints as the hub and transformers keep them: config.json and safetensors, in both directions."""
