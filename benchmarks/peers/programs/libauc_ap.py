import torch
from libauc.losses import APLoss
from libauc.optimizers import SOAP
from sklearn.metrics import average_precision_score

x = torch.randn(1000, 10)
y = (x[:, 0] + torch.randn(1000) > 1.5).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 1), torch.nn.Flatten(0))
loss = APLoss(data_len=len(x))
optimizer = SOAP(model.parameters(), lr=0.03, mode="adam", verbose=False)
index = torch.arange(len(x))
positives = torch.where(y == 1)[0]
negatives = torch.where(y == 0)[0]
for _ in range(30):
    half = positives[torch.randint(len(positives), (128,))]
    batch = torch.cat([half, negatives[torch.randint(len(negatives), (128,))]])
    optimizer.zero_grad()
    loss(torch.sigmoid(model(x[batch])), y[batch], index[batch]).backward()
    optimizer.step()
print(average_precision_score(y, model(x).detach()))
