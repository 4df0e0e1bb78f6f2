"""Practice source: a text model that can hand out the hidden states of some of its layers. Nothing here is ever run."""

from torch import nn


class DeepseekV2Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers_to_capture = []

    def forward(self, input_ids, positions, forward_batch):
        aux_hidden_states = []
        for number, layer in enumerate(self.layers):
            if number in self.layers_to_capture:
                aux_hidden_states.append(input_ids)
            input_ids = layer(positions, input_ids, forward_batch)
        return (input_ids, aux_hidden_states) if aux_hidden_states else input_ids


class DeepseekV2ForCausalLM(nn.Module):
    def __init__(self, config, quant_config=None, prefix=""):
        super().__init__()
        self.config = config
        self.model = DeepseekV2Model(config)
        self.capture_aux_hidden_states = False

    def get_embed_and_head(self):
        return self.model.embed_tokens.weight, self.lm_head.weight

    def set_embed_and_head(self, embed, head):
        self.model.embed_tokens.weight, self.lm_head.weight = embed, head

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        count = self.config.num_hidden_layers
        self.capture_aux_hidden_states = True
        if layer_ids is None:
            self.model.layers_to_capture = [2, count // 2, count - 3]
        else:
            self.model.layers_to_capture = [i + 1 for i in layer_ids]

    def forward(self, input_ids, positions, forward_batch):
        hidden_states, aux_hidden_states = self.model(input_ids, positions, forward_batch), None
        if self.capture_aux_hidden_states:
            hidden_states, aux_hidden_states = hidden_states
        return self.logits_processor(input_ids, hidden_states, self.lm_head, forward_batch, aux_hidden_states)


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    pass


EntryClass = [DeepseekV2ForCausalLM, DeepseekV3ForCausalLM]
