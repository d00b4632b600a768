"""Turn formats of model families whose tool calls are not the JSON of Hermes."""
