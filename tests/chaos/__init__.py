"""The promises, attacked: what clients recorded while everything around them was killed."""
