"""What a model needs and costs on a machine, before anything is loaded. Pure: figures in, figures out."""
