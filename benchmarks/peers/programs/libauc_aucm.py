import torch
from libauc.losses import AUCMLoss
from libauc.optimizers import PESG
from sklearn.metrics import roc_auc_score

x = torch.randn(1000, 10)
y = (x[:, 0] + torch.randn(1000) > 1.5).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 1), torch.nn.Flatten(0))
loss = AUCMLoss()
optimizer = PESG(model.parameters(), loss_fn=loss, lr=0.1, verbose=False)
for step in range(30):
    optimizer.zero_grad()
    loss(torch.sigmoid(model(x)), y).backward()
    optimizer.step()
    if step == 15:
        optimizer.update_regularizer()
print(roc_auc_score(y, model(x).detach()))
