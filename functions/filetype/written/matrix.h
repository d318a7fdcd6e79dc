#ifndef MATRIX_H
#define MATRIX_H

/* Row-major matrices of doubles. No function allocates: the caller owns all memory. */

typedef struct {
    int rows;
    int columns;
    double *values;
} matrix_t;

enum matrix_error {
    MATRIX_OK = 0,
    MATRIX_SHAPE = -1, /* shapes do not go together */
    MATRIX_SINGULAR = -2,
};

static inline double matrix_at(const matrix_t *m, int row, int column)
{
    return m->values[row * m->columns + column];
}

int matrix_multiply(const matrix_t *left, const matrix_t *right, matrix_t *product);
int matrix_transpose(const matrix_t *m, matrix_t *transposed);
int matrix_solve(const matrix_t *coefficients, const double *constants, double *solution);
void matrix_identity(matrix_t *m);

#endif
