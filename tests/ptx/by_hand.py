"""Flat kernels for GPUs, written by hand: one of each way in which blocks and threads share work."""

from tilewright.tile.ir import Kernel
from tilewright.tile.text import parse_kernel
from tilewright.tile.verify import verify

POINTWISE = """kernel pointwise
  size n[1:]
  place x: f32[n, 512] global in
  place y: f32[n, 512] global out
  body
    for b[0:] < n block
      for t[0:127] < 128 thread
        for v[0:3] < 4 vector
          y[b, 4*t + v] = exp(x[b, 4*t + v])
"""

RAGGED = """kernel ragged
  size n[1:]
  place x: f32[n] global in
  place y: f32[n] global out
  body
    for b[0:] < (n + 31) // 32 block
      for t[0:31] < 32 thread
        if inside(n - 32*b - t - 1)
          y[32*b + t] = add(x[32*b + t], 1.0:f32)
"""

ROWS = """kernel rows
  size n[1:]
  place x: f32[n, 96] global in
  place y: f32[n, 96] global out
  place part: f32[32] shared tmp
  place m: f32[] reg tmp
  place s: f32[] reg tmp
  body
    for b[0:] < n block
      for t[0:31] < 32 thread
        m[] = x[b, t]
        for k[0:1] < 2 unroll
          m[] max= x[b, t + 32*k + 32]
        part[t] = m[]
        barrier
        for j[0:31] < 32 serial
          m[] max= part[j]
        barrier
        s[] = 0.0:f32
        for k2[0:2] < 3 unroll
          s[] add= exp(sub(x[b, t + 32*k2], m[]))
        part[t] = s[]
        barrier
        s[] = 0.0:f32
        for j2[0:31] < 32 serial
          s[] add= part[j2]
        for k3[0:2] < 3 unroll
          y[b, t + 32*k3] = div(exp(sub(x[b, t + 32*k3], m[])), s[])
"""

PRODUCT = """kernel product
  place x: f32[64, 64] global in
  place y: f32[64, 64] global in
  place z: f32[64, 64] global out
  place acc: f32[4, 4] reg tmp
  place xs: f32[16, 32] shared tmp
  place ys: f32[16, 32] shared tmp
  body
    for bi[0:1] < 2 block
      for bj[0:1] < 2 block
        for ti[0:7] < 8 thread
          for tj[0:7] < 8 thread
            for i[0:3] < 4 unroll
              for j[0:3] < 4 vector
                acc[i, j] = 0.0:f32
            for ko[0:3] < 4 serial
              for c[0:7] < 8 unroll
                xs[2*c + ti // 4, 8*(ti % 4) + tj] = x[32*bi + 8*(ti % 4) + tj, 16*ko + 2*c + ti // 4]
              for c2[0:1] < 2 unroll
                for w[0:3] < 4 vector
                  ys[8*c2 + ti, 4*tj + w] = y[16*ko + 8*c2 + ti, 32*bj + 4*tj + w]
              barrier
              for k[0:15] < 16 unroll
                for i2[0:3] < 4 unroll
                  for j2[0:3] < 4 vector
                    acc[i2, j2] add= mul(xs[k, 4*ti + i2], ys[k, 4*tj + j2])
              barrier
            for i3[0:3] < 4 unroll
              for j3[0:3] < 4 vector
                z[32*bi + 4*ti + i3, 32*bj + 4*tj + j3] = acc[i3, j3]
"""

TWO_GRIDS = """kernel two_grids
  size n[1:]
  place x: f32[n, 64] global in
  place y: f32[n] global out
  place z: f32[n, 64] global out
  place s: f32[] reg tmp
  body
    for b[0:] < n block
      for t[0:0] < 1 thread
        s[] = 0.0:f32
        for k[0:63] < 64 serial
          s[] add= x[b, k]
        y[b] = s[]
    for b2[0:] < n block
      for c2[0:3] < 4 block
        for t2[0:15] < 16 thread
          z[b2, 16*c2 + t2] = sub(x[b2, 16*c2 + t2], y[b2])
"""

LONG = """kernel long
  size n[1:]
  size m[1:]
  place x: f32[n, m, 3] global in
  place y: f32[n, m, 3] global out
  body
    for b[0:] < n block
      for c[0:] < m block
        for t[0:2] < 3 thread
          y[b, c, t] = neg(x[b, c, t])
"""

BIG_SHARED = """kernel big_shared
  place x: f32[16384] global in
  place y: f32[16384] global out
  place s: f32[16384] shared tmp
  body
    for b[0:0] < 1 block
      for t[0:31] < 32 thread
        for k[0:511] < 512 serial
          s[t + 32*k] = x[t + 32*k]
        barrier
        for k2[0:511] < 512 serial
          y[t + 32*k2] = s[16383 - t - 32*k2]
"""


MATRICES = """kernel matrices
  place x: f16[64, 32] global in
  place y: f16[32, 64] global in
  place z: f32[64, 64] global out
  place acc: f32[32, 32] reg tmp
  place xs: f16[64, 24] shared tmp
  place ys: f16[16, 72] shared tmp
  body
    for bi[0:0] < 1 block
      for u[0:1] < 2 thread
        for w[0:1] < 2 thread
          for ti[0:1] < 2 unroll
            for tj[0:3] < 4 unroll
              for m0[0:15] < 16 warp
                for n0[0:7] < 8 warp
                  acc[16*ti + m0, 8*tj + n0] = 0.0:f32
          for ko[0:1] < 2 serial
            for c[0:31] < 32 warp
              for v[0:7] < 8 vector
                xs[32*u + 16*w + c // 2, 8*(c % 2) + v] = x[64*bi + 32*u + 16*w + c // 2, 16*ko + 8*(c % 2) + v]
              for v2[0:7] < 8 vector
                ys[8*u + 4*w + c // 8, 8*(c % 8) + v2] = y[16*ko + 8*u + 4*w + c // 8, 8*(c % 8) + v2]
            barrier
            for p[0:1] < 2 unroll
              for q[0:3] < 4 unroll
                for m[0:15] < 16 warp
                  for n[0:7] < 8 warp
                    for k[0:15] < 16 warp
                      acc[16*p + m, 8*q + n] add= mul(cast.f32(xs[32*u + 16*p + m, k]), cast.f32(ys[k, 32*w + 8*q + n]))
            barrier
          for ti2[0:1] < 2 unroll
            for tj2[0:3] < 4 unroll
              for m2[0:15] < 16 warp
                for n2[0:7] < 8 warp
                  z[64*bi + 32*u + 16*ti2 + m2, 32*w + 8*tj2 + n2] = acc[16*ti2 + m2, 8*tj2 + n2]
"""


ONE_TILE = """kernel one_tile
  place x: f16[16, 32] global in
  place y: f16[32, 8] global in
  place z: f32[16, 8] global out
  place acc: f32[16, 8] reg tmp
  body
    for b[0:0] < 1 block
      for w[0:0] < 1 thread
        for m0[0:15] < 16 warp
          for n0[0:7] < 8 warp
            acc[m0, n0] = 0.0:f32
        for ko[0:1] < 2 serial
          for m1[0:15] < 16 warp
            for n1[0:7] < 8 warp
              for k1[0:15] < 16 warp
                acc[m1, n1] add= mul(cast.f32(x[m1, 16*ko + k1]), cast.f32(y[16*ko + k1, n1]))
        for m2[0:15] < 16 warp
          for n2[0:7] < 8 warp
            z[m2, n2] = acc[m2, n2]
"""


FOURS = """kernel fours
  place x: f16[64, 192] global in
  place y: f16[8, 192] global in
  place z: f32[64, 8] global out
  place acc: f32[16, 8] reg tmp
  place xs: f16[3, 64, 64] shared tmp ahead 1 swizzled
  place ys: f16[3, 8, 64] shared tmp ahead 1 swizzled
  body
    for b[0:0] < 1 block
      for w[0:3] < 4 thread
        for m0[0:15] < 16 warp
          for n0[0:7] < 8 warp
            acc[m0, n0] = 0.0:f32
        for c0[0:31] < 32 warp
          for u0[0:3] < 4 unroll
            for v0[0:7] < 8 vector
              xs[0, 16*w + 4*u0 + c0 // 8, 8*(c0 % 8) + v0] = x[16*w + 4*u0 + c0 // 8, 8*(c0 % 8) + v0]
        for c1[0:15] < 16 warp
          for v1[0:7] < 8 vector
            ys[0, 2*w + c1 // 8, 8*(c1 % 8) + v1] = y[2*w + c1 // 8, 8*(c1 % 8) + v1]
        commit
        for ko[0:2] < 3 serial
          barrier 0 running
          for c2[0:31] < 32 warp
            for u2[0:3] < 4 unroll
              for v2[0:7] < 8 vector
                xs[(ko + 1) % 3, 16*w + 4*u2 + c2 // 8, 8*(c2 % 8) + v2] = select(inside(-ko + 1), \
x[16*w + 4*u2 + c2 // 8, 64*ko + 8*(c2 % 8) + v2 + 64], 0.0:f16)
          for c3[0:15] < 16 warp
            for v3[0:7] < 8 vector
              ys[(ko + 1) % 3, 2*w + c3 // 8, 8*(c3 % 8) + v3] = select(inside(-ko + 1), \
y[2*w + c3 // 8, 64*ko + 8*(c3 % 8) + v3 + 64], 0.0:f16)
          commit
          for ki[0:3] < 4 unroll
            for m[0:15] < 16 warp
              for n[0:7] < 8 warp
                for k[0:15] < 16 warp
                  acc[m, n] add= mul(cast.f32(xs[ko % 3, 16*w + m, 16*ki + k]), cast.f32(ys[ko % 3, n, 16*ki + k]))
        for m2[0:15] < 16 warp
          for n2[0:7] < 8 warp
            z[16*w + m2, n2] = acc[m2, n2]
"""
"""Four warps that run one instruction; another step is copied, and the last one may still be read."""


def kernel(text: str) -> Kernel:
    """The kernel, checked."""
    made = parse_kernel(text)
    verify(made)
    return made
