"""Chat templates, tokenizers and detokenizers behind one port.

Every other room of the gateway may import it; it imports none of them. Start with `port.py`.
"""
