"""A worker's drafters: what proposes tokens beside the model, by models and heads of their own."""
