#include "app/ds4_opts.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "app/cli_file.h"
#include "app/cli_term.h"
#include "ds4.h"

#define AT(field) .at = offsetof(ds4_opts, field)
#define GROUP(text) {.kind = CLI_GROUP, .help = text}

static const cli_opt table[] = {
    GROUP("Model:"),
    {"--model", "-m", "FILE", CLI_TEXT, AT(model), .help = "model file (GGUF; any part of a split set)"},
    {"--mtp", "--mtp-model", "FILE", CLI_TEXT, AT(drafter), .help = "DSpark support file (GGUF) of the same model"},
    {"--ctx", "-c", "N", CLI_INT, AT(ctx), .lo = 1, .hi = 1 << 30,
     .help = "context in tokens (default 4096, or the model's maximum)"},
    {"--backend", NULL, "NAME", CLI_TEXT, AT(backend), .help = "cpu or cuda (default: the best one there is)"},
    {"--cpu", NULL, NULL, CLI_WORD, AT(backend), .choices = "cpu", .help = "same as --backend cpu"},
    {"--cuda", NULL, NULL, CLI_WORD, AT(backend), .choices = "cuda", .help = "same as --backend cuda"},
    {"--threads", "-t", "N", CLI_INT, AT(threads), .lo = 1, .hi = 1024, .help = "CPU threads (default: all)"},
    {"--protocol", NULL, "DIR", CLI_TEXT, AT(protocol),
     .help =
         "folder with DeepSeek's texts for tools, effort and response formats\n(default: protocol/ beside the model)"},

    GROUP("Prompt (none: interactive):"),
    {"--prompt", "-p", "TEXT", CLI_TEXT, AT(prompt), .help = "answer this and exit"},
    {"--prompt-file", NULL, "FILE", CLI_TEXT, AT(prompt_file),
     .help = "the same with the text of a file (- is standard input)"},
    {"--system", "-sys", "TEXT", CLI_TEXT, AT(system), .help = "system message"},
    {"--raw-prompt", NULL, NULL, CLI_FLAG, AT(raw), .help = "continue the text as it is: no chat template, only BOS"},
    {"--token-ids", NULL, "FILE", CLI_TEXT, AT(token_ids),
     .help = "token ids as the whole prompt: blanks between them, or the array\n"
             "that --dump-tokens prints"},
    {"--think", NULL, NULL, CLI_SET, AT(thinking), .lo = THINKING_ON, .help = "think before answering (default)"},
    {"--think-max", NULL, NULL, CLI_SET, AT(thinking), .lo = THINKING_MAX, .help = "think with the highest effort"},
    {"--nothink", NULL, NULL, CLI_SET, AT(thinking), .lo = THINKING_OFF, .help = "answer at once"},
    {"--effort", NULL, "E", CLI_TEXT, AT(effort_name),
     .help = "reasoning effort: none, low, medium, high, max, or 0 to 100"},
    {"--release", NULL, "R", CLI_CHOICE, AT(release), .choices = "auto|preview|0731",
     .help = "whose effort texts to use: preview, 0731 (default: auto, from the\nnames in the model file)"},
    {"--history", NULL, "FILE", CLI_TEXT, AT(history), .help = "lines typed at the prompt (default ~/.ds4_history)"},

    GROUP("Generation:"),
    {"--tokens", "-n", "N", CLI_INT, AT(tokens), .lo = 1, .hi = 1 << 30,
     .help = "most tokens of an answer (default: context)"},
    {"--temp", NULL, "F", CLI_REAL, AT(temp), .lo = 0, .hi = 100,
     .help = "temperature (default 1; 0 picks the likeliest token)"},
    {"--top-p", NULL, "F", CLI_REAL, AT(top_p), .lo = 0, .hi = 1, .help = "nucleus (default 0.95)"},
    {"--top-k", NULL, "N", CLI_INT, AT(top_k), .lo = 0, .hi = 1 << 30, .help = "keep the N likeliest (default 0: all)"},
    {"--min-p", NULL, "F", CLI_REAL, AT(min_p), .lo = 0, .hi = 1,
     .help = "drop what is below F times the likeliest (default 0)"},
    {"--seed", NULL, "N", CLI_U64, AT(seed), .help = "same seed, same text, with and without DSpark (default: random)"},
    {"--ignore-eos", NULL, NULL, CLI_FLAG, AT(ignore_eos), .help = "go on where the model would stop (for measuring)"},

    GROUP("DSpark (text never changes, only speed):"),
    {"--dspark", NULL, NULL, CLI_FLAG, AT(dspark),
     .help = "draft with the file of --mtp; a cost model decides how far"},
    {"--dspark-confidence", NULL, "F", CLI_REAL, AT(confidence), .lo = 0, .hi = 1,
     .help = "draft while the confidence is at least F, whatever it costs\n(implies --dspark)"},
    {"--dspark-strict", NULL, NULL, CLI_FLAG, AT(dspark_strict),
     .help = "load the drafter, never draft (implies --dspark)"},

    GROUP("State and reports:"),
    {"--save", NULL, "FILE", CLI_TEXT, AT(save), .help = "write a snapshot of the session at the end"},
    {"--load", NULL, "FILE", CLI_TEXT, AT(load),
     .help = "start from a snapshot: what it shares with the prompt is not computed\nagain; without a prompt, go on "
             "where it ended"},
    {"--stats", NULL, NULL, CLI_FLAG, AT(stats), .help = "seed, memory, drafting statistics and decisions on stderr"},
    {"--inspect", NULL, NULL, CLI_FLAG, AT(inspect), .help = "describe the files and exit"},
    {"--help", "-h", NULL, CLI_FLAG, AT(help), .help = "this text"},
    {"--version", NULL, NULL, CLI_FLAG, AT(version), .help = "version and exit"},

    GROUP("Diagnostics:"),
    {"--act", NULL, "A", CLI_CHOICE, AT(act), .choices = "q8|float",
     .help = "activations of quantised products: q8 (default), float (reference)"},
    {"--kv-sim", NULL, "S", CLI_CHOICE, AT(kv_sim), .choices = "full|kvfp8|off",
     .help = "simulated rounding of KV rows: full (the model, default), kvfp8, off"},
    {"--dump-tokens", NULL, NULL, CLI_FLAG, AT(dump_tokens),
     .help = "print the ids of the prompt text as JSON and exit"},
    {"--parse-special", NULL, NULL, CLI_FLAG, AT(parse_special),
     .help = "added tokens written in the text count (with --dump-tokens, --raw-prompt)"},
    {"--render", NULL, "FILE", CLI_TEXT, AT(render),
     .help = "print the prompt that a JSON conversation becomes and exit"},
    {"--dump-logits", NULL, "FILE", CLI_TEXT, AT(dump_logits),
     .help = "write float32 logits behind the prompt and exit"},
    {"--all-positions", NULL, NULL, CLI_FLAG, AT(all_positions),
     .help = "logits of every prompt position, not only the last"},
    {"--dump-logprobs", NULL, "FILE", CLI_TEXT, AT(dump_logprobs), .help = "write one JSON line per generated token"},
    {"--logprobs-top-k", NULL, "N", CLI_INT, AT(logprobs_top_k), .lo = 0, .hi = 1000,
     .help = "alternatives in it (default 5)"},
    {"--test-proposer", NULL, "P", CLI_TEXT, AT(test_proposer)}, /* random, wrong, short, oracle instead of DSpark */
};
enum { N_OPTIONS = sizeof table / sizeof *table };

void ds4_opts_help(void)
{
    size_t n;
    const cfg_setting *s = cfg_settings(&n);
    printf("usage: ds4 -m FILE [options]\n\n");
    cli_help(stdout, table, N_OPTIONS);
    printf("\nEnvironment:\n");
    for (size_t i = 0; i < n; i++)
        printf("  %-29s %s (%s)\n", s[i].name, s[i].help, s[i].type);
    printf("\nExit status: 0 done, 1 failed (one line on stderr says why), 2 wrong usage.\n"
           "The answer goes to standard output, everything else to standard error.\n");
}

void ds4_opts_warn_environment(void)
{
    size_t cursor = 0;
    char name[80];
    while (cfg_unknown(&cursor, name, sizeof name))
        cli_say(PROGRAM, "warning: nothing reads the environment variable %s (--help lists those that count)", name);
}

static int count_prompts(const ds4_opts *o) { return !!o->prompt + !!o->prompt_file + !!o->token_ids; }

static int check_drafting(ds4_opts *o, ds4_err *e)
{
    if (o->confidence >= 0 || o->dspark_strict)
        o->dspark = true;
    if (o->dspark && !o->drafter)
        return ds4_fail(e, DS4_EARG, "--dspark requires --mtp FILE (the DSpark support GGUF)");
    return 0;
}

static int check_prompt(ds4_opts *o, ds4_err *e)
{
    bool text = o->prompt || o->prompt_file;
    if (count_prompts(o) > 1)
        return ds4_fail(e, DS4_EARG, "give only one of --prompt, --prompt-file and --token-ids");
    if (o->dump_tokens && !text)
        return ds4_fail(e, DS4_EARG, "--dump-tokens needs a text: --prompt or --prompt-file");
    if (o->raw && !text)
        return ds4_fail(e, DS4_EARG, "--raw-prompt needs a text: --prompt or --prompt-file");
    if (o->parse_special && !o->dump_tokens && !o->raw)
        return ds4_fail(e, DS4_EARG, "--parse-special goes with --dump-tokens or --raw-prompt");
    if (o->dump_logits && !count_prompts(o))
        return ds4_fail(e, DS4_EARG, "--dump-logits needs --prompt, --prompt-file or --token-ids");
    if (o->all_positions && !o->dump_logits)
        return ds4_fail(e, DS4_EARG, "--all-positions goes with --dump-logits");
    if (o->test_proposer && !count_prompts(o))
        return ds4_fail(e, DS4_EARG, "--test-proposer needs a prompt");
    if (o->logprobs_top_k >= 0 && !o->dump_logprobs)
        return ds4_fail(e, DS4_EARG, "--logprobs-top-k goes with --dump-logprobs");
    return 0;
}

/* Nothing that is written may replace what is read (a model of 80 GB), or another output. */
static int check_outputs(const ds4_opts *o, ds4_err *e)
{
    const struct { const char *option, *path; } out[] = {{"--save", o->save}, {"--dump-logits", o->dump_logits},
                                                         {"--dump-logprobs", o->dump_logprobs}},
                                                in[] = {{"--model", o->model}, {"--mtp", o->drafter},
                                                        {"--prompt-file", o->prompt_file},
                                                        {"--token-ids", o->token_ids}};
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) {
        for (size_t k = 0; k < sizeof in / sizeof *in; k++)
            if (cli_same_file(out[i].path, in[k].path))
                return ds4_fail(e, DS4_EARG, "%s would replace %s, the file of %s", out[i].option, out[i].path,
                                in[k].option);
        for (size_t k = 0; k < i; k++)
            if (cli_same_file(out[i].path, out[k].path))
                return ds4_fail(e, DS4_EARG, "%s and %s name the same file %s", out[k].option, out[i].option,
                                out[i].path);
    }
    return 0;
}

static int check_effort(ds4_opts *o, ds4_err *e)
{
    if (o->thinking == THINKING_MAX && o->effort_name)
        return ds4_fail(e, DS4_EARG, "--think-max is an effort: leave --effort out");
    if (o->thinking == THINKING_MAX)
        o->effort = CHAT_EFFORT_MAX;
    return o->effort_name ? chat_effort_parse(o->effort_name, &o->effort, e) : 0;
}

static void draw_seed(cli_u64 *seed)
{
    if (getrandom(&seed->value, sizeof seed->value, 0) != (ssize_t)sizeof seed->value)
        seed->value = (uint64_t)time(NULL) * 0x9E3779B97F4A7C15u;
}

int ds4_opts_read(ds4_opts *o, int argc, char *const *argv, ds4_err *e)
{
    const ds4_generate_options g = ds4_generate_defaults();
    *o = (ds4_opts){
        .confidence = -1, .temp = g.temp, .top_p = g.top_p, .min_p = g.min_p, .top_k = g.top_k, .logprobs_top_k = -1};
    int rc = cfg_load(&o->env, e);
    if (!rc)
        rc = cli_parse(table, N_OPTIONS, argc, argv, o, e);
    if (rc || o->help || o->version)
        return rc;
    if (!o->model && !o->render)
        return ds4_fail(e, DS4_EARG, "no model: give -m FILE (the small one is mini/ds4-mini.gguf)");
    rc = check_drafting(o, e);
    if (!rc)
        rc = check_prompt(o, e);
    if (!rc)
        rc = check_outputs(o, e);
    if (!rc)
        rc = check_effort(o, e);
    if (!rc && o->top_p <= 0)
        rc = ds4_fail(e, DS4_EARG, "--top-p is 0, expected above 0 to 1 (--temp 0 picks the likeliest token)");
    if (!o->seed.given)
        draw_seed(&o->seed);
    if (o->logprobs_top_k < 0)
        o->logprobs_top_k = 5;
    return rc;
}
