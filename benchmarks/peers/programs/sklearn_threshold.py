import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import TunedThresholdClassifierCV

x = np.random.default_rng(0).normal(size=(1000, 10))
y = (x[:, 0] + np.random.default_rng(1).normal(size=1000) > 1.5).astype(int)
model = TunedThresholdClassifierCV(LogisticRegression(), scoring="f1").fit(x, y)
print(f1_score(y, model.predict(x)))
