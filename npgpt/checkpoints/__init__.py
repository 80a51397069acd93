"""GPT-2 checkpoints in the format of transformers and the hub (config.json and safetensors), and
runs.
"""
