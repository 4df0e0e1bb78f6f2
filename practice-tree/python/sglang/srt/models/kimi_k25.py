"""Practice source: the wrapper of Kimi-K2.5 as SGLang 0.5.9 has it, without the methods that EAGLE-3 asks for."""

from torch import nn

from sglang.srt.models.deepseek_v2 import DeepseekV3ForCausalLM


class KimiK25ForConditionalGeneration(nn.Module):
    def __init__(self, config, quant_config=None, prefix="", **kwargs):
        super().__init__()
        self.config = config
        self.language_model = DeepseekV3ForCausalLM(config.text_config, quant_config)

    def get_image_feature(self, items):
        return self.mm_projector(self.vision_tower(items))

    def forward(self, input_ids, positions, forward_batch, get_embedding=False):
        return self.language_model(input_ids, positions, forward_batch)

    def load_weights(self, weights):
        self.language_model.load_weights(weights)


EntryClass = [KimiK25ForConditionalGeneration]
