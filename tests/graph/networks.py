"""Small networks of the shapes that models have, with seeded weights, for tests of passes."""

import numpy as np

from tilewright import ops
from tilewright.core.types import f32


class Net:
    """Layers over one builder, channels first as frontends import them."""

    def __init__(self, b, seed=0):
        self.b, self.rng = b, np.random.default_rng(seed)

    def weight(self, *shape):
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return self.b.const((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def conv(self, x, n_out, kernel=3, stride=1, groups=1):
        rank = x.type.rank - 2
        w = self.weight(n_out, x.shape[1] // groups, *[kernel] * rank)
        pads = [(kernel // 2, kernel // 2)] * rank
        return self.b(ops.conv, x, w, strides=[stride] * rank, pads=pads, dilations=[1] * rank, groups=groups)

    def bias(self, x, axis=1):
        shape = [x.shape[k] if k == axis else 1 for k in range(x.type.rank)]
        return self.b(ops.add, x, self.weight(*shape))

    def batch_norm(self, x):
        n = x.shape[1]
        scale, bias, mean = (self.weight(n) for _ in range(3))
        var = self.b.const(self.rng.uniform(0.5, 2, n).astype(np.float32))
        return self.b(ops.batch_norm, x, scale, bias, mean, var)

    def relu(self, x):
        return self.b(ops.relu, x)

    def linear(self, x, n_out):
        return self.bias(self.b(ops.matmul, x, self.weight(x.shape[-1], n_out)), axis=x.type.rank - 1)

    def residual_block(self, x, n_out, stride=1):
        y = self.relu(self.batch_norm(self.conv(x, n_out, stride=stride)))
        y = self.batch_norm(self.conv(y, n_out))
        if stride != 1 or x.shape[1] != n_out:
            x = self.batch_norm(self.conv(x, n_out, kernel=1, stride=stride))
        return self.relu(self.b(ops.add, y, x))

    def squeeze_excite(self, x):
        s = self.b(ops.reduce_mean, x, axes=(2, 3), keepdims=True)
        s = self.relu(self.bias(self.conv(s, 2, kernel=1)))
        return self.b(ops.mul, x, self.b(ops.sigmoid, self.bias(self.conv(s, x.shape[1], kernel=1))))


def resnet(b, x):
    net = Net(b)
    y = net.relu(net.batch_norm(net.conv(x, 8, kernel=7, stride=2)))
    y = b(ops.max_pool, y, kernel=(3, 3), strides=(2, 2), pads=((1, 1), (1, 1)))
    for n, stride in ((8, 1), (16, 2), (16, 1)):
        y = net.residual_block(y, n, stride)
    y = b(ops.reshape, b(ops.reduce_mean, y, axes=(2, 3), keepdims=True), shape=(x.shape[0], 16))
    return net.linear(y, 10)


def efficient(b, x):
    net = Net(b)
    y = net.conv(x, 8, stride=2)
    y = b(ops.silu, net.batch_norm(y))
    z = b(ops.silu, net.batch_norm(net.conv(y, 8, groups=8)))
    z = net.batch_norm(net.conv(net.squeeze_excite(z), 8, kernel=1))
    y = b(ops.add, z, y)
    return net.linear(b(ops.reduce_mean, y, axes=(2, 3)), 4)


def unet(b, x):
    net = Net(b)
    n, c, h, w = x.shape

    def norm(y):
        return b(ops.silu, b(ops.group_norm, y, net.weight(y.shape[1]), net.weight(y.shape[1]), groups=2))

    top = net.conv(norm(net.conv(x, 8)), 8)
    low = net.conv(norm(net.conv(top, 8, stride=2)), 8)
    up = b(ops.resize, low, sizes=(n, 8, h, w), scales=(1.0, 1.0, 2.0, 2.0), mode="nearest",
           coordinate_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    return net.bias(net.conv(norm(b(ops.concat, up, top, axis=1)), c))


def patch_embedding(b, x):
    net = Net(b)
    w = net.weight(12, 3, 4, 4)
    y = net.bias(b(ops.conv, x, w, strides=(4, 4), pads=((0, 0), (0, 0)), dilations=(1, 1)))
    y = b(ops.transpose, b(ops.reshape, y, shape=(x.shape[0], 12, 4)), perm=(0, 2, 1))
    return net.linear(b(ops.layer_norm, y, b.const(np.ones(12, np.float32)), axis=2), 5)


def transformer(b, x, heads=4):
    """One layer of BERT's kind, in the pieces that exporters write."""
    net = Net(b)
    n, length, width = x.shape
    depth = width // heads

    def split(y, perm):
        return b(ops.transpose, b(ops.reshape, y, shape=(n, length, heads, depth)), perm=perm)

    def norm(y):
        mean = b(ops.reduce_mean, y, axes=(2,), keepdims=True)
        centred = b(ops.sub, y, mean)
        square = b(ops.reduce_mean, b(ops.pow, centred, b.const(2.0, f32)), axes=(2,), keepdims=True)
        y = b(ops.div, centred, b(ops.sqrt, b(ops.add, square, b.const(1e-5, f32))))
        return b(ops.add, b(ops.mul, y, net.weight(width)), net.weight(width))

    q, k, v = (net.linear(x, width) for _ in range(3))
    scores = b(ops.matmul, split(q, (0, 2, 1, 3)), split(k, (0, 2, 3, 1)))
    weights = b(ops.softmax, b(ops.div, scores, b.const(float(np.sqrt(depth)), f32)), axis=3)
    y = b(ops.transpose, b(ops.matmul, weights, split(v, (0, 2, 1, 3))), perm=(0, 2, 1, 3))
    y = norm(b(ops.add, x, net.linear(b(ops.reshape, y, shape=x.shape), width)))
    h = net.linear(y, 2 * width)
    inner = b(ops.erf, b(ops.div, h, b.const(float(np.sqrt(2)), f32)))
    h = b(ops.mul, b(ops.mul, h, b(ops.add, inner, b.const(1.0, f32))), b.const(0.5, f32))
    return norm(b(ops.add, y, net.linear(h, width)))


NETWORKS = {
    "resnet": (resnet, ["f32[2,3,32,32]"]),
    "efficient": (efficient, ["f32[2,3,8,8]"]),
    "unet": (unet, ["f32[1,4,8,8]"]),
    "patch_embedding": (patch_embedding, ["f32[2,3,8,8]"]),
    "transformer": (transformer, ["f32[2,6,16]"]),
}
