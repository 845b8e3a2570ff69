"""Capture turns a model and a batch into Programs, by torch.compile's front end and AOTAutograd's joint graph."""
