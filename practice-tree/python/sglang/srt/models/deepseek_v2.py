"""Practice source: a text model that can hand out the hidden states of some of its layers. Nothing here is ever run."""

from torch import nn


class DeepseekV2ForCausalLM(nn.Module):
    def __init__(self, config, quant_config=None, prefix=""):
        super().__init__()
        self.config = config
        self.layers_to_capture = []

    def get_embed_and_head(self):
        return self.embed_tokens.weight, self.lm_head.weight

    def set_embed_and_head(self, embed, head):
        self.embed_tokens.weight, self.lm_head.weight = embed, head

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        count = self.config.num_hidden_layers
        self.layers_to_capture = [2, count // 2, count - 3] if layer_ids is None else [i + 1 for i in layer_ids]


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    pass


EntryClass = [DeepseekV2ForCausalLM, DeepseekV3ForCausalLM]
