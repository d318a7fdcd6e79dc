#include <stdio.h>
#include <stdlib.h>

#define LIMIT_MAX 100000000UL

static unsigned long count_primes(unsigned char *composite, unsigned long limit)
{
    unsigned long found = 0;

    for (unsigned long n = 2; n <= limit; n++) {
        if (composite[n])
            continue;
        found++;
        for (unsigned long m = n * n; m <= limit && n <= 10000; m += n)
            composite[m] = 1;
    }
    return found;
}

int main(int argc, char **argv)
{
    unsigned long limit = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;

    if (limit > LIMIT_MAX) {
        fprintf(stderr, "%s: expected at most %lu, got %lu\n", argv[0], LIMIT_MAX, limit);
        return 2;
    }
    unsigned char *composite = calloc(limit + 1, 1);
    if (composite == NULL) {
        perror("calloc");
        return 1;
    }
    printf("%lu primes up to %lu\n", count_primes(composite, limit), limit);
    free(composite);
    return 0;
}
