import torch
from ap_perf import MetricLayer, PerformanceMetric
from sklearn.metrics import f1_score


class F1(PerformanceMetric):
    def define(self, C):
        return (2 * C.tp) / (C.ap + C.pp)


metric = F1()
metric.initialize()
metric.enforce_special_case_positive()
x = torch.randn(1000, 10)
y = (x[:, 0] + torch.randn(1000) > 1.5).long()
model = torch.nn.Sequential(torch.nn.Linear(10, 1), torch.nn.Flatten(0))
optimizer = torch.optim.Adam(model.parameters(), 0.03)
loss = MetricLayer(metric)
for _ in range(30):
    batch = torch.randint(len(x), (50,))
    optimizer.zero_grad()
    loss(model(x[batch]), y[batch].float()).backward()
    optimizer.step()
print(f1_score(y, model(x).detach() > 0))
