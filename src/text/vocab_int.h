/* vocab_int.h: the inside of a vocab, shared by vocab.c (look-ups) and vocab_load.c (reading a file). */
#ifndef DS4_TEXT_VOCAB_INT_H
#define DS4_TEXT_VOCAB_INT_H

#include "text/vocab.h"

/* Open-addressing table of token ids, keyed by the token's bytes; -1 = free; size a power of two, at most half full. */
typedef struct id_table {
    int32_t *slot;
    uint32_t mask;
} id_table;

typedef struct merge_slot {
    int32_t left, right; /* left = -1: free */
    int32_t rank, merged;
} merge_slot;

/* A node of the prefix tree over added tokens: children are a linked list. */
typedef struct tree_node {
    int32_t child, sibling; /* index, -1 none */
    int32_t id;             /* token that ends here, -1 none */
    uint8_t byte;
} tree_node;

struct vocab {
    uint32_t n;
    char *blob;    /* all token bytes one after the other */
    size_t *start; /* n + 1 offsets into blob */
    uint8_t *type; /* enum vocab_type */
    id_table plain, added;
    merge_slot *merges;
    uint32_t merge_mask;
    tree_node *tree; /* node 0 is the root */
    uint32_t n_tree, cap_tree;
    int32_t first[256]; /* tree: child of the root by byte, -1 none */
    int32_t byte_id[256];
    int32_t special[SP_COUNT];
    pretok *pre;
};

uint32_t vocab_hash_bytes(const char *p, size_t n);
uint32_t vocab_hash_pair(int32_t a, int32_t b);
int32_t vocab_table_find(const vocab *v, const id_table *t, const char *p, size_t n);

#endif
