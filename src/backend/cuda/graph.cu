/* graph.cu: steps. A step is a sequence of launches that is the same every time its key is seen. First sight: issued as
 * it comes, which also lets scratch grow. Second: captured into a graph, then launched. From then on: one launch of the
 * graph. Launches read what varies (tokens, positions) from device memory, which the caller fills before. */
#include "backend/cuda/gpu.cuh"

bool gpu_outside_step(gpu *g, const char *what)
{
    if (g->capturing)
        gpu_fail(g, "%s inside a step that is being captured", what);
    return !g->capturing;
}

static void forget(gpu_step *s)
{
    if (s->graph)
        cudaGraphExecDestroy(s->graph); /* one that still runs is freed when it has finished */
    *s = gpu_step{};
}

/* The step of this key if it is still valid, else a fresh entry: a free one, or the one unused for longest. */
static gpu_step *find(gpu *g, uint64_t key)
{
    gpu_step *oldest = &g->step[0];
    for (int i = 0; i < GPU_STEPS; i++) {
        gpu_step *s = &g->step[i];
        if (s->state != STEP_NONE && s->generation != g->generation)
            forget(s);
        if (s->state != STEP_NONE && s->key == key)
            return s;
        oldest = s->used < oldest->used ? s : oldest;
    }
    forget(oldest);
    oldest->key = key;
    return oldest;
}

bool gpu_step_begin(backend *b, uint64_t key)
{
    gpu *g = gpu_of(b);
    if (!gpu_ok(g) || g->open) {
        if (g->open)
            gpu_fail(g, "a step inside a step");
        return true; /* operations do nothing now */
    }
    gpu_settle(g);
    gpu_step *s = find(g, key);
    s->used = ++g->steps;
    if (s->state == STEP_READY) {
        g->replays++;
        GPU_CHECK(g, cudaGraphLaunch(s->graph, g->stream));
        return false;
    }
    g->open = s;
    if (s->state == STEP_SEEN)
        g->capturing = GPU_CHECK(g, cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
    return true;
}

/* Ends the capture in any case: a stream must not stay in it. */
static void finish_capture(gpu *g, gpu_step *s)
{
    cudaGraph_t graph = NULL;
    g->capturing = false;
    cudaError_t rc = cudaStreamEndCapture(g->stream, &graph);
    if (gpu_ok(g) && GPU_CHECK(g, rc))
        GPU_CHECK(g, cudaGraphInstantiate(&s->graph, graph, 0));
    if (graph)
        cudaGraphDestroy(graph);
    if (!gpu_ok(g))
        return;
    s->state = STEP_READY;
    GPU_CHECK(g, cudaGraphLaunch(s->graph, g->stream));
}

void gpu_step_end(backend *b)
{
    gpu *g = gpu_of(b);
    gpu_step *s = g->open;
    gpu_settle(g);
    if (!s)
        return;
    g->open = NULL;
    if (g->capturing) {
        finish_capture(g, s);
        return;
    }
    s->state = STEP_SEEN;
    s->generation = g->generation; /* scratch has its final size now */
}

void gpu_steps_close(gpu *g)
{
    for (int i = 0; i < GPU_STEPS; i++)
        forget(&g->step[i]);
}
