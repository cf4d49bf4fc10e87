"""Two requests, one after the other, with the Grams on disk in between and the training set gone."""

import tempfile
from pathlib import Path

import torch

import unweave
from unweave.demo import data, network

train = data.load("train").where(torch.arange(0, 3000, 5))
model = network.train(train, seed=0, epochs=6)
first, second = train.where(torch.arange(0, 600, 25)), train.where(torch.arange(1, 600, 25))

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "grams.safetensors"
    unweave.fit(model, train.batches(), val=data.load("val").batches()).save(path)
    del train
    fitted = model  # with it, later requests take out exactly what was added
    for request in (first, second):
        grams = unweave.LayerGrams.load(path)
        result = unweave.forget(model, request.batches(), grams, first=fitted)
        print(result.summary())
        assert result.ok, "a request that failed must not replace what it started from"
        model = result.model
        result.grams.save(path)
    print(unweave.LayerGrams.load(path))
