/* A ring of bytes for one writer and one reader. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct ring {
    uint8_t *bytes;
    size_t size;
    size_t head; /* next byte to read */
    size_t used;
};

bool ring_open(struct ring *ring, size_t size)
{
    ring->bytes = malloc(size);
    ring->size = size;
    ring->head = 0;
    ring->used = 0;
    return ring->bytes != NULL;
}

void ring_close(struct ring *ring)
{
    free(ring->bytes);
    memset(ring, 0, sizeof *ring);
}

size_t ring_write(struct ring *ring, const uint8_t *from, size_t count)
{
    size_t room = ring->size - ring->used;
    if (count > room)
        count = room;
    for (size_t i = 0; i < count; i++)
        ring->bytes[(ring->head + ring->used + i) % ring->size] = from[i];
    ring->used += count;
    return count;
}

size_t ring_read(struct ring *ring, uint8_t *to, size_t count)
{
    if (count > ring->used)
        count = ring->used;
    for (size_t i = 0; i < count; i++)
        to[i] = ring->bytes[(ring->head + i) % ring->size];
    ring->head = (ring->head + count) % ring->size;
    ring->used -= count;
    return count;
}
