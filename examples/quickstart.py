"""Train, fit, forget: the whole flow on 600 real images, in seconds."""

import torch

import unweave
from unweave.demo import data, network

train = data.load("train").where(torch.arange(0, 3000, 5))
val = data.load("val")
model = network.train(train, seed=0, epochs=6)

grams = unweave.fit(model, train.batches(), val=val.batches())  # once, while the training set is there
request = train.where(torch.arange(0, 600, 20))  # later: 30 samples are to be forgotten
result = unweave.forget(model, request.batches(), grams, val=val.batches())

print(result.summary())
assert result.ok
