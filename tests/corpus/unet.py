"""U-Net for masks of images: batch norm, cross entropy and a Dice loss per image, clipping, and a schedule by the score
on the validation set, which every worker computes by itself."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import dynamix_ps.torch as dynamix

EPOCHS = 3


class DoubleConv(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc, self.down = DoubleConv(1, 4), DoubleConv(4, 8)
        self.up, self.conv, self.outc = nn.ConvTranspose2d(8, 4, 2, stride=2), DoubleConv(8, 4), nn.Conv2d(4, 1, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down(F.max_pool2d(x1, 2))
        return self.outc(self.conv(torch.cat([x1, self.up(x2)], dim=1)))


def dice_coeff(probabilities, target, epsilon=1e-6):
    inter = 2 * (probabilities * target).sum(dim=(-1, -2))
    sets_sum = probabilities.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    return ((inter + epsilon) / (sets_sum + epsilon)).mean()


@torch.no_grad()
def evaluate(net, dataloader):
    net.eval()
    score = 0.0
    for image, mask_true in dataloader:
        score += dice_coeff((torch.sigmoid(net(image).squeeze(1)) > 0.5) * 1.0, mask_true)
    net.train()
    return score / len(dataloader)


torch.manual_seed(0)
images = F.avg_pool2d(torch.randn(280, 1, 8, 8), 3, 1, 1)
dataset = TensorDataset(images, (images[:, 0] > 0.1) * 1.0)
train_set, val_set = random_split(dataset, [224, 56], generator=torch.Generator().manual_seed(0))
train_loader, val_loader = DataLoader(train_set, batch_size=32, shuffle=True), DataLoader(val_set, batch_size=28)
model = UNet()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, weight_decay=1e-8, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=0)
criterion = nn.BCEWithLogitsLoss()
run = dynamix.attach(model, optimizer, train_loader)

for epoch in run.epochs(EPOCHS):
    model.train()
    for step, (image, true_mask) in enumerate(run.batches()):
        masks_pred = model(image).squeeze(1)
        loss = criterion(masks_pred, true_mask) + 1 - dice_coeff(torch.sigmoid(masks_pred), true_mask)
        optimizer.zero_grad(set_to_none=True)
        run.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 4 == 3:
            val_score = evaluate(model, val_loader)
            scheduler.step(val_score)
    print(f"epoch {epoch}: Dice score {val_score:.4f}, learning rate {optimizer.param_groups[0]['lr']:g}")
