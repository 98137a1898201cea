// The thirty programs of PolyBench/C 4.2 in C, the loops in the order of the suite: what a C compiler makes of them is
// measured beside ours (polybench_speed.py). Our own spelling of the suite's algorithms.
//
// In: PROGRAM_<name> and the sizes N_<size> as macros, called as in polybench.py. Out: one function `run`, whose
// arguments are those of our kernel, then the results that are no arguments.
// Not its business: time, data.

#include <math.h>

#define FOR(v, from, to) for (int v = (from); v < (to); v++)
#define DOWN(v, from, to) for (int v = (from); v >= (to); v--)
#define ALPHA 1.5
#define BETA 1.2

// --- products

#ifdef PROGRAM_gemm
void run(double c[N_m][N_n], double a[N_m][N_k], double b[N_k][N_n]) {
  FOR(i, 0, N_m) {
    FOR(j, 0, N_n) c[i][j] *= BETA;
    FOR(k, 0, N_k) FOR(j, 0, N_n) c[i][j] += ALPHA * a[i][k] * b[k][j];
  }
}
#endif

#ifdef PROGRAM_2mm
static double tmp[N_i][N_j];
void run(double a[N_i][N_k], double b[N_k][N_j], double c[N_j][N_l], double d[N_i][N_l]) {
  FOR(i, 0, N_i) FOR(j, 0, N_j) {
    tmp[i][j] = 0.0;
    FOR(k, 0, N_k) tmp[i][j] += ALPHA * a[i][k] * b[k][j];
  }
  FOR(i, 0, N_i) FOR(j, 0, N_l) {
    d[i][j] *= BETA;
    FOR(k, 0, N_j) d[i][j] += tmp[i][k] * c[k][j];
  }
}
#endif

#ifdef PROGRAM_3mm
static double e[N_i][N_j], f[N_j][N_l];
void run(double a[N_i][N_k], double b[N_k][N_j], double c[N_j][N_m], double d[N_m][N_l], double g[N_i][N_l]) {
  FOR(i, 0, N_i) FOR(j, 0, N_j) {
    e[i][j] = 0.0;
    FOR(k, 0, N_k) e[i][j] += a[i][k] * b[k][j];
  }
  FOR(i, 0, N_j) FOR(j, 0, N_l) {
    f[i][j] = 0.0;
    FOR(k, 0, N_m) f[i][j] += c[i][k] * d[k][j];
  }
  FOR(i, 0, N_i) FOR(j, 0, N_l) {
    g[i][j] = 0.0;
    FOR(k, 0, N_j) g[i][j] += e[i][k] * f[k][j];
  }
}
#endif

#ifdef PROGRAM_doitgen
static double sum[N_p];
void run(double a[N_r][N_q][N_p], double c4[N_p][N_p]) {
  FOR(r, 0, N_r) FOR(q, 0, N_q) {
    FOR(p, 0, N_p) {
      sum[p] = 0.0;
      FOR(s, 0, N_p) sum[p] += a[r][q][s] * c4[s][p];
    }
    FOR(p, 0, N_p) a[r][q][p] = sum[p];
  }
}
#endif

#ifdef PROGRAM_symm
void run(double c[N_m][N_n], double a[N_m][N_m], double b[N_m][N_n]) {
  FOR(i, 0, N_m) FOR(j, 0, N_n) {
    double t = 0;
    FOR(k, 0, i) {
      c[k][j] += ALPHA * b[i][j] * a[i][k];
      t += b[k][j] * a[i][k];
    }
    c[i][j] = BETA * c[i][j] + ALPHA * b[i][j] * a[i][i] + ALPHA * t;
  }
}
#endif

#ifdef PROGRAM_syrk
void run(double c[N_n][N_n], double a[N_n][N_m]) {
  FOR(i, 0, N_n) {
    FOR(j, 0, i + 1) c[i][j] *= BETA;
    FOR(k, 0, N_m) FOR(j, 0, i + 1) c[i][j] += ALPHA * a[i][k] * a[j][k];
  }
}
#endif

#ifdef PROGRAM_syr2k
void run(double c[N_n][N_n], double a[N_n][N_m], double b[N_n][N_m]) {
  FOR(i, 0, N_n) {
    FOR(j, 0, i + 1) c[i][j] *= BETA;
    FOR(k, 0, N_m) FOR(j, 0, i + 1) c[i][j] += a[j][k] * ALPHA * b[i][k] + b[j][k] * ALPHA * a[i][k];
  }
}
#endif

#ifdef PROGRAM_trmm
void run(double a[N_m][N_m], double b[N_m][N_n]) {
  FOR(i, 0, N_m) FOR(j, 0, N_n) {
    FOR(k, i + 1, N_m) b[i][j] += a[k][i] * b[k][j];
    b[i][j] = ALPHA * b[i][j];
  }
}
#endif

// --- matrices and vectors

#ifdef PROGRAM_atax
static double ax[N_m];
void run(double a[N_m][N_n], double x[N_n], double y[N_n]) {
  FOR(i, 0, N_n) y[i] = 0;
  FOR(i, 0, N_m) {
    ax[i] = 0.0;
    FOR(j, 0, N_n) ax[i] += a[i][j] * x[j];
    FOR(j, 0, N_n) y[j] += a[i][j] * ax[i];
  }
}
#endif

#ifdef PROGRAM_bicg
void run(double a[N_n][N_m], double p[N_m], double r[N_n], double s[N_m], double q[N_n]) {
  FOR(i, 0, N_m) s[i] = 0;
  FOR(i, 0, N_n) {
    q[i] = 0.0;
    FOR(j, 0, N_m) {
      s[j] += r[i] * a[i][j];
      q[i] += a[i][j] * p[j];
    }
  }
}
#endif

#ifdef PROGRAM_mvt
void run(double a[N_n][N_n], double x1[N_n], double x2[N_n], double y1[N_n], double y2[N_n]) {
  FOR(i, 0, N_n) FOR(j, 0, N_n) x1[i] += a[i][j] * y1[j];
  FOR(i, 0, N_n) FOR(j, 0, N_n) x2[i] += a[j][i] * y2[j];
}
#endif

#ifdef PROGRAM_gesummv
static double t[N_n];
void run(double a[N_n][N_n], double b[N_n][N_n], double x[N_n], double y[N_n]) {
  FOR(i, 0, N_n) {
    t[i] = 0.0;
    y[i] = 0.0;
    FOR(j, 0, N_n) {
      t[i] += a[i][j] * x[j];
      y[i] += b[i][j] * x[j];
    }
    y[i] = ALPHA * t[i] + BETA * y[i];
  }
}
#endif

#ifdef PROGRAM_gemver
void run(double a[N_n][N_n], double u1[N_n], double v1[N_n], double u2[N_n], double v2[N_n], double y[N_n],
         double z[N_n], double x[N_n], double w[N_n]) {
  FOR(i, 0, N_n) FOR(j, 0, N_n) a[i][j] += u1[i] * v1[j] + u2[i] * v2[j];
  FOR(i, 0, N_n) x[i] = 0.0;
  FOR(i, 0, N_n) FOR(j, 0, N_n) x[i] += BETA * a[j][i] * y[j];
  FOR(i, 0, N_n) x[i] += z[i];
  FOR(i, 0, N_n) w[i] = 0.0;
  FOR(i, 0, N_n) FOR(j, 0, N_n) w[i] += ALPHA * a[i][j] * x[j];
}
#endif

// --- solvers

#ifdef PROGRAM_cholesky
void run(double a[N_n][N_n]) {
  FOR(i, 0, N_n) {
    FOR(j, 0, i) {
      FOR(k, 0, j) a[i][j] -= a[i][k] * a[j][k];
      a[i][j] /= a[j][j];
    }
    FOR(k, 0, i) a[i][i] -= a[i][k] * a[i][k];
    a[i][i] = sqrt(a[i][i]);
  }
}
#endif

#if defined PROGRAM_lu || defined PROGRAM_ludcmp
static void factors(double a[N_n][N_n]) {
  FOR(i, 0, N_n) {
    FOR(j, 0, i) {
      double w = a[i][j];
      FOR(k, 0, j) w -= a[i][k] * a[k][j];
      a[i][j] = w / a[j][j];
    }
    FOR(j, i, N_n) {
      double w = a[i][j];
      FOR(k, 0, i) w -= a[i][k] * a[k][j];
      a[i][j] = w;
    }
  }
}
#endif

#ifdef PROGRAM_lu
void run(double a[N_n][N_n]) { factors(a); }
#endif

#ifdef PROGRAM_ludcmp
static double y[N_n];
void run(double a[N_n][N_n], double b[N_n], double x[N_n]) {
  factors(a);
  FOR(i, 0, N_n) {
    double w = b[i];
    FOR(j, 0, i) w -= a[i][j] * y[j];
    y[i] = w;
  }
  DOWN(i, N_n - 1, 0) {
    double w = y[i];
    FOR(j, i + 1, N_n) w -= a[i][j] * x[j];
    x[i] = w / a[i][i];
  }
}
#endif

#ifdef PROGRAM_trisolv
void run(double a[N_n][N_n], double b[N_n], double x[N_n]) {
  FOR(i, 0, N_n) {
    x[i] = b[i];
    FOR(j, 0, i) x[i] -= a[i][j] * x[j];
    x[i] = x[i] / a[i][i];
  }
}
#endif

#ifdef PROGRAM_durbin
void run(double r[N_n], double y[N_n]) {
  double z[N_n], alpha = -r[0], beta = 1.0;
  y[0] = -r[0];
  FOR(k, 1, N_n) {
    beta = (1 - alpha * alpha) * beta;
    double sum = 0.0;
    FOR(i, 0, k) sum += r[k - i - 1] * y[i];
    alpha = -(r[k] + sum) / beta;
    FOR(i, 0, k) z[i] = y[i] + alpha * y[k - i - 1];
    FOR(i, 0, k) y[i] = z[i];
    y[k] = alpha;
  }
}
#endif

#ifdef PROGRAM_gramschmidt
void run(double a[N_m][N_n], double q[N_m][N_n], double r[N_n][N_n]) {
  FOR(k, 0, N_n) {
    double norm = 0.0;
    FOR(i, 0, N_m) norm += a[i][k] * a[i][k];
    r[k][k] = sqrt(norm);
    FOR(i, 0, N_m) q[i][k] = a[i][k] / r[k][k];
    FOR(j, k + 1, N_n) {
      r[k][j] = 0.0;
      FOR(i, 0, N_m) r[k][j] += q[i][k] * a[i][j];
      FOR(i, 0, N_m) a[i][j] -= q[i][k] * r[k][j];
    }
  }
}
#endif

// --- data

#ifdef PROGRAM_covariance
static double mean[N_m];
void run(double data[N_n][N_m], double cov[N_m][N_m]) {
  FOR(j, 0, N_m) {
    mean[j] = 0.0;
    FOR(i, 0, N_n) mean[j] += data[i][j];
    mean[j] /= (double)N_n;
  }
  FOR(i, 0, N_n) FOR(j, 0, N_m) data[i][j] -= mean[j];
  FOR(i, 0, N_m) FOR(j, i, N_m) {
    cov[i][j] = 0.0;
    FOR(k, 0, N_n) cov[i][j] += data[k][i] * data[k][j];
    cov[i][j] /= (double)N_n - 1.0;
    cov[j][i] = cov[i][j];
  }
}
#endif

#ifdef PROGRAM_correlation
static double mean[N_m], stddev[N_m];
void run(double data[N_n][N_m], double corr[N_m][N_m]) {
  FOR(j, 0, N_m) {
    mean[j] = 0.0;
    FOR(i, 0, N_n) mean[j] += data[i][j];
    mean[j] /= (double)N_n;
  }
  FOR(j, 0, N_m) {
    stddev[j] = 0.0;
    FOR(i, 0, N_n) stddev[j] += (data[i][j] - mean[j]) * (data[i][j] - mean[j]);
    stddev[j] = sqrt(stddev[j] / (double)N_n);
    stddev[j] = stddev[j] <= 0.1 ? 1.0 : stddev[j];
  }
  FOR(i, 0, N_n) FOR(j, 0, N_m) {
    data[i][j] -= mean[j];
    data[i][j] /= sqrt((double)N_n) * stddev[j];
  }
  FOR(i, 0, N_m - 1) {
    corr[i][i] = 1.0;
    FOR(j, i + 1, N_m) {
      corr[i][j] = 0.0;
      FOR(k, 0, N_n) corr[i][j] += data[k][i] * data[k][j];
      corr[j][i] = corr[i][j];
    }
  }
  corr[N_m - 1][N_m - 1] = 1.0;
}
#endif

#ifdef PROGRAM_floyd_warshall
void run(int path[N_n][N_n]) {
  FOR(k, 0, N_n) FOR(i, 0, N_n) FOR(j, 0, N_n)
    path[i][j] = path[i][j] < path[i][k] + path[k][j] ? path[i][j] : path[i][k] + path[k][j];
}
#endif

#ifdef PROGRAM_nussinov
#define MAX(a, b) ((a) >= (b) ? (a) : (b))
void run(int seq[N_n], int table[N_n][N_n]) {
  FOR(i, 0, N_n) FOR(j, 0, N_n) table[i][j] = 0;
  DOWN(i, N_n - 1, 0) FOR(j, i + 1, N_n) {
    if (j - 1 >= 0) table[i][j] = MAX(table[i][j], table[i][j - 1]);
    if (i + 1 < N_n) table[i][j] = MAX(table[i][j], table[i + 1][j]);
    if (j - 1 >= 0 && i + 1 < N_n) {
      if (i < j - 1)
        table[i][j] = MAX(table[i][j], table[i + 1][j - 1] + (seq[i] + seq[j] == 3 ? 1 : 0));
      else
        table[i][j] = MAX(table[i][j], table[i + 1][j - 1]);
    }
    FOR(k, i + 1, j) table[i][j] = MAX(table[i][j], table[i][k] + table[k + 1][j]);
  }
}
#endif

#ifdef PROGRAM_deriche
static double forth[N_w][N_h], back[N_w][N_h];
void run(double in[N_w][N_h], double out[N_w][N_h]) {
  double xm1, ym1, ym2, xp1, xp2, yp1, yp2, alpha = 0.25;
  double k = (1.0 - exp(-alpha)) * (1.0 - exp(-alpha)) / (1.0 + 2.0 * alpha * exp(-alpha) - exp(2.0 * alpha));
  double a1 = k, a2 = k * exp(-alpha) * (alpha - 1.0), a3 = k * exp(-alpha) * (alpha + 1.0);
  double a4 = -k * exp(-2.0 * alpha), b1 = pow(2.0, -alpha), b2 = -exp(-2.0 * alpha);
  FOR(i, 0, N_w) {
    ym1 = ym2 = xm1 = 0.0;
    FOR(j, 0, N_h) {
      forth[i][j] = a1 * in[i][j] + a2 * xm1 + b1 * ym1 + b2 * ym2;
      xm1 = in[i][j];
      ym2 = ym1;
      ym1 = forth[i][j];
    }
  }
  FOR(i, 0, N_w) {
    yp1 = yp2 = xp1 = xp2 = 0.0;
    DOWN(j, N_h - 1, 0) {
      back[i][j] = a3 * xp1 + a4 * xp2 + b1 * yp1 + b2 * yp2;
      xp2 = xp1;
      xp1 = in[i][j];
      yp2 = yp1;
      yp1 = back[i][j];
    }
  }
  FOR(i, 0, N_w) FOR(j, 0, N_h) out[i][j] = forth[i][j] + back[i][j];
  FOR(j, 0, N_h) {
    xm1 = ym1 = ym2 = 0.0;
    FOR(i, 0, N_w) {
      forth[i][j] = a1 * out[i][j] + a2 * xm1 + b1 * ym1 + b2 * ym2;
      xm1 = out[i][j];
      ym2 = ym1;
      ym1 = forth[i][j];
    }
  }
  FOR(j, 0, N_h) {
    xp1 = xp2 = yp1 = yp2 = 0.0;
    DOWN(i, N_w - 1, 0) {
      back[i][j] = a3 * xp1 + a4 * xp2 + b1 * yp1 + b2 * yp2;
      xp2 = xp1;
      xp1 = out[i][j];
      yp2 = yp1;
      yp1 = back[i][j];
    }
  }
  FOR(i, 0, N_w) FOR(j, 0, N_h) out[i][j] = forth[i][j] + back[i][j];
}
#endif

// --- stencils

#ifdef PROGRAM_jacobi_1d
static double b[N_n];
void run(double a[N_n]) {
  FOR(i, 0, N_n) b[i] = a[i];
  FOR(t, 0, N_steps) {
    FOR(i, 1, N_n - 1) b[i] = 0.33333 * (a[i - 1] + a[i] + a[i + 1]);
    FOR(i, 1, N_n - 1) a[i] = 0.33333 * (b[i - 1] + b[i] + b[i + 1]);
  }
}
#endif

#ifdef PROGRAM_jacobi_2d
static double b[N_n][N_n];
void run(double a[N_n][N_n]) {
  FOR(i, 0, N_n) FOR(j, 0, N_n) b[i][j] = a[i][j];
  FOR(t, 0, N_steps) {
    FOR(i, 1, N_n - 1) FOR(j, 1, N_n - 1)
      b[i][j] = 0.2 * (a[i][j] + a[i][j - 1] + a[i][1 + j] + a[1 + i][j] + a[i - 1][j]);
    FOR(i, 1, N_n - 1) FOR(j, 1, N_n - 1)
      a[i][j] = 0.2 * (b[i][j] + b[i][j - 1] + b[i][1 + j] + b[1 + i][j] + b[i - 1][j]);
  }
}
#endif

#ifdef PROGRAM_seidel_2d
void run(double a[N_n][N_n]) {
  FOR(t, 0, N_steps) FOR(i, 1, N_n - 1) FOR(j, 1, N_n - 1)
    a[i][j] = (a[i - 1][j - 1] + a[i - 1][j] + a[i - 1][j + 1] + a[i][j - 1] + a[i][j] + a[i][j + 1]
               + a[i + 1][j - 1] + a[i + 1][j] + a[i + 1][j + 1]) / 9.0;
}
#endif

#ifdef PROGRAM_heat_3d
static double b[N_n][N_n][N_n];
#define STEP(t, s)                                                       \
  FOR(i, 1, N_n - 1) FOR(j, 1, N_n - 1) FOR(k, 1, N_n - 1)               \
    t[i][j][k] = 0.125 * (s[i + 1][j][k] - 2.0 * s[i][j][k] + s[i - 1][j][k]) \
               + 0.125 * (s[i][j + 1][k] - 2.0 * s[i][j][k] + s[i][j - 1][k]) \
               + 0.125 * (s[i][j][k + 1] - 2.0 * s[i][j][k] + s[i][j][k - 1]) + s[i][j][k];
void run(double a[N_n][N_n][N_n]) {
  FOR(i, 0, N_n) FOR(j, 0, N_n) FOR(k, 0, N_n) b[i][j][k] = a[i][j][k];
  FOR(t, 0, N_steps) {
    STEP(b, a)
    STEP(a, b)
  }
}
#endif

#ifdef PROGRAM_fdtd_2d
void run(double ex[N_n][N_m], double ey[N_n][N_m], double hz[N_n][N_m], double source[N_t]) {
  FOR(t, 0, N_t) {
    FOR(j, 0, N_m) ey[0][j] = source[t];
    FOR(i, 1, N_n) FOR(j, 0, N_m) ey[i][j] = ey[i][j] - 0.5 * (hz[i][j] - hz[i - 1][j]);
    FOR(i, 0, N_n) FOR(j, 1, N_m) ex[i][j] = ex[i][j] - 0.5 * (hz[i][j] - hz[i][j - 1]);
    FOR(i, 0, N_n - 1) FOR(j, 0, N_m - 1)
      hz[i][j] = hz[i][j] - 0.7 * (ex[i][j + 1] - ex[i][j] + ey[i + 1][j] - ey[i][j]);
  }
}
#endif

#ifdef PROGRAM_adi
static double v[N_n][N_n], p[N_n][N_n], q[N_n][N_n];
void run(double u[N_n][N_n]) {
  double mul1 = 2.0 * 0.25 / (0.05 * 0.05), mul2 = 1.0 * 0.25 / (0.05 * 0.05);
  double a = -mul1 / 2.0, b = 1.0 + mul1, c = a, d = -mul2 / 2.0, e = 1.0 + mul2, f = d;
  FOR(t, 0, N_steps) {
    FOR(i, 1, N_n - 1) {
      v[0][i] = 1.0;
      p[i][0] = 0.0;
      q[i][0] = v[0][i];
      FOR(j, 1, N_n - 1) {
        p[i][j] = -c / (a * p[i][j - 1] + b);
        q[i][j] = (-d * u[j][i - 1] + (1.0 + 2.0 * d) * u[j][i] - f * u[j][i + 1] - a * q[i][j - 1]) / (a * p[i][j - 1] + b);
      }
      v[N_n - 1][i] = 1.0;
      DOWN(j, N_n - 2, 1) v[j][i] = p[i][j] * v[j + 1][i] + q[i][j];
    }
    FOR(i, 1, N_n - 1) {
      u[i][0] = 1.0;
      p[i][0] = 0.0;
      q[i][0] = u[i][0];
      FOR(j, 1, N_n - 1) {
        p[i][j] = -f / (d * p[i][j - 1] + e);
        q[i][j] = (-a * v[i - 1][j] + (1.0 + 2.0 * a) * v[i][j] - c * v[i + 1][j] - d * q[i][j - 1]) / (d * p[i][j - 1] + e);
      }
      u[i][N_n - 1] = 1.0;
      DOWN(j, N_n - 2, 1) u[i][j] = p[i][j] * u[i][j + 1] + q[i][j];
    }
  }
}
#endif
