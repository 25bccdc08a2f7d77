"""Learn handwritten digits, data-parallel.

    torchrun --nproc-per-node 4 digits.py

An ordinary DDP script but for the three lines marked "Gradwire". Needs scikit-learn, which
brings the images along.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gradwire  # Gradwire

EPOCHS = 8

dist.init_process_group("gloo")
torch.manual_seed(0)  # the same first weights and the same split of the data on every rank

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels))
test, training = order[:360], order[360:]

dataset = TensorDataset(images[training], labels[training])
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)

network = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(512, 128),
    nn.ReLU(),
    nn.Linear(128, 10),
)
model = DistributedDataParallel(network, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

session = gradwire.connect()  # Gradwire
model.register_comm_hook(session, gradwire.allreduce_hook)  # Gradwire

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)  # or every epoch would see the same order
    for batch, wanted in loader:
        optimizer.zero_grad()
        cross_entropy(model(batch), wanted).backward()
        optimizer.step()
    with torch.no_grad():
        guesses = network(images[test])
    loss = cross_entropy(guesses, labels[test])
    accuracy = (guesses.argmax(dim=1) == labels[test]).float().mean()
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1}/{EPOCHS}: loss {loss:.4f}, accuracy {accuracy:.1%}")

dist.destroy_process_group()
