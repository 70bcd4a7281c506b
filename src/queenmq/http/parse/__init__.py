"""From what a client sent to what the engine is asked. Whatever passes here is fit to be handed on."""
