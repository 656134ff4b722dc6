import torch

import metricgrad as mg

x = torch.randn(1000, 10)
y = (x[:, 0] + torch.randn(1000) > 1.5).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 1), torch.nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), 0.03)
loss = mg.MetricLoss("f1")
for _ in range(30):
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
print(float(mg.metric("f1")(model(x), y)))
