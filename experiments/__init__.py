"""The paper's experiments: its models, data and recipes. Nothing in src/ imports this.

images, splits                        labelled images on a device, and which of them the paper forgets or poisons
archives, cifar10, tinyimagenet       a data set's arrays, from whatever a person has
download, cache, data                 got, kept, checked, and loaded by name
models, recipes                       the networks, and how each is trained
training, fast_training, dropout      the paper's loop, and a quick one for many networks
halfway                               trainings that go on after an interruption
jobs                                  results that are kept as soon as they are there
keeping                               parts of an earlier document, where their outcomes are gone
"""
