/* A stamped server in C, for the benchmark alone: it must never be what is slow.
 *
 * Streams sglang-like events; every event carries sent_ns, CLOCK_MONOTONIC just before its write. The first event of
 * a stream comes TTFT after its request, the others one period apart; with a burst step all events of all streams wait
 * for the same moments. Prints {"port": N}; on SIGTERM prints what it did: requests, events, and how late it was itself.
 *
 *   cc -O2 -o stamped _stamped.c && ./stamped PERIOD_MS TTFT_MS TTFT_SPREAD_MS BURST(0|1) PAD
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 65536
#define INBOX (1 << 20)

typedef struct {
    char *inbox, *outbox;
    size_t in_len, out_len, out_off;
    int asked, tokens, prompt, api, usage; /* api: 0 generate, 1 completions, 2 chat */
    uint64_t serial, received;
} client_t;

typedef struct { int64_t at; uint64_t serial; int fd; } due_t;

static client_t *clients[MAX_FD];
static due_t *heap;
static size_t heap_len, heap_cap;
static volatile sig_atomic_t stop;
static int64_t period_ns, ttft_ns, spread_ns;
static int burst, ep;
static char pad[4096];
static uint64_t serials, served, events, late_sum, late_max;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void push(due_t d) {
    if (heap_len == heap_cap) heap = realloc(heap, (heap_cap = heap_cap ? heap_cap * 2 : 1024) * sizeof *heap);
    size_t i = heap_len++;
    while (i && heap[(i - 1) / 2].at > d.at) { heap[i] = heap[(i - 1) / 2]; i = (i - 1) / 2; }
    heap[i] = d;
}

static due_t pop(void) {
    due_t top = heap[0], last = heap[--heap_len];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= heap_len) break;
        if (c + 1 < heap_len && heap[c + 1].at < heap[c].at) c++;
        if (heap[c].at >= last.at) break;
        heap[i] = heap[c];
        i = c;
    }
    if (heap_len) heap[i] = last;
    return top;
}

static void watch(int fd, int out, int op) {
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.fd = fd};
    epoll_ctl(ep, op, fd, &e);
}

static void drop(int fd) {
    client_t *c = clients[fd];
    clients[fd] = NULL;
    free(c->inbox); free(c->outbox); free(c);
    close(fd);
}

static void put(int fd, const char *data, size_t len) {
    client_t *c = clients[fd];
    if (!c->out_len) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) n = (errno == EAGAIN) ? 0 : (ssize_t)len;
        data += n; len -= n;
        if (!len) return;
        watch(fd, 1, EPOLL_CTL_MOD);
    }
    c->outbox = realloc(c->outbox, c->out_len + len);
    memcpy(c->outbox + c->out_len, data, len);
    c->out_len += len;
}

static void flush_out(int fd) {
    client_t *c = clients[fd];
    ssize_t n = send(fd, c->outbox + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) c->out_off += n;
    if (c->out_off == c->out_len) { c->out_off = c->out_len = 0; watch(fd, 0, EPOLL_CTL_MOD); }
}

static int64_t stepped(int64_t at) { return burst ? (at + period_ns - 1) / period_ns * period_ns : at; }

static void emit(int fd, int64_t due) {
    client_t *c = clients[fd];
    char data[8192], wire[8700];
    int first = !c->tokens, last = ++c->tokens >= c->asked, n;
    int64_t now = now_ns();
    uint64_t late = now - due;
    late_sum += late;
    if (late > late_max) late_max = late;
    events++;
    if (c->api == 0) {
        char finish[64] = "null", extra[64] = "";
        if (last) {
            sprintf(finish, "{\"type\":\"length\",\"length\":%d}", c->asked);
            sprintf(extra, ",\"e2e_latency\":%.9f", (now - (int64_t)c->received) / 1e9);
        }
        n = sprintf(data, "data: {\"text\":\"%s\",\"meta_info\":{\"id\":\"%lu\",\"finish_reason\":%s,\"prompt_tokens\":%d,"
            "\"weight_version\":\"default\",\"completion_tokens\":%d,\"cached_tokens\":0,\"sent_ns\":%ld%s}}\n\n",
            pad, c->serial, finish, c->prompt, c->tokens, now, extra);
    } else {
        const char *finish = last ? "\"length\"" : "null";
        char usage[160] = "null", content[4200];
        if (last || c->usage)
            sprintf(usage, "{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d}", c->prompt,
                c->prompt + c->tokens, c->tokens);
        sprintf(content, c->api == 1 ? "\"text\":\"%s\"" : "\"delta\":{\"role\":\"assistant\",\"content\":\"%s\"}", pad);
        n = sprintf(data, "data: {\"id\":\"%lu\",\"object\":\"%s\",\"created\":1,\"model\":\"stamped\",\"choices\":[{\"index\":0,"
            "%s,\"finish_reason\":%s}],\"usage\":%s,\"sent_ns\":%ld}\n\n", c->serial,
            c->api == 1 ? "text_completion" : "chat.completion.chunk", content, finish, usage, now);
    }
    int w = 0;
    if (first) w = sprintf(wire, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
    w += sprintf(wire + w, "%x\r\n", n);
    memcpy(wire + w, data, n);
    w += n;
    w += sprintf(wire + w, last ? "\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" : "\r\n");
    if (last) { c->serial = 0; served++; }
    else push((due_t){due + period_ns, c->serial, fd});
    put(fd, wire, w);
}

static int number_after(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (!at) return 0;
    for (at += strlen(key); *at && (*at < '0' || *at > '9'); at++) {}
    return atoi(at);
}

static void plain(int fd, const char *path) {
    const char *body = "{}", *status = "200 OK";
    char out[1024];
    if (!strncmp(path, "/v1/models", 10)) body = "{\"object\":\"list\",\"data\":[{\"id\":\"stamped\",\"object\":\"model\"}]}";
    else if (strstr(path, "server_info")) body = "{\"model_path\":\"stamped\",\"version\":\"0\",\"internal_states\":[{}]}";
    else if (strstr(path, "model_info")) body = "{\"model_path\":\"stamped\",\"is_generation\":true}";
    else if (strncmp(path, "/health", 7) && strncmp(path, "/flush_cache", 12) && strncmp(path, "/ready", 6)) status = "404 Not Found";
    put(fd, out, sprintf(out, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status, strlen(body), body));
}

static void request(int fd, char *head, char *body) {
    client_t *c = clients[fd];
    char path[256] = "";
    sscanf(head, "%*s %255s", path);
    if (!strncmp(path, "/generate", 9)) c->api = 0;
    else if (!strncmp(path, "/v1/completions", 15)) c->api = 1;
    else if (!strncmp(path, "/v1/chat/completions", 20)) c->api = 2;
    else { plain(fd, path); return; }
    c->received = now_ns();
    c->asked = number_after(body, "\"max_new_tokens\"");
    if (!c->asked) c->asked = number_after(body, "\"max_tokens\"");
    if (!c->asked) c->asked = number_after(body, "\"max_completion_tokens\"");
    if (!c->asked) c->asked = 16;
    c->usage = strstr(body, "continuous_usage_stats") != NULL;
    c->tokens = 0;
    c->prompt = 128;
    c->serial = ++serials;
    int64_t wait = ttft_ns;
    if (spread_ns) wait += (int64_t)((c->serial * 2654435761u) % 1000) * spread_ns / 1000 - spread_ns / 2;
    push((due_t){stepped(c->received + wait), c->serial, fd});
}

static void readable(int fd) {
    client_t *c = clients[fd];
    ssize_t n = recv(fd, c->inbox + c->in_len, INBOX - 1 - c->in_len, MSG_DONTWAIT);
    if (n <= 0) { if (n == 0 || errno != EAGAIN) drop(fd); return; }
    c->in_len += n;
    c->inbox[c->in_len] = 0;
    char *end = strstr(c->inbox, "\r\n\r\n");
    if (!end) return;
    char *field = strcasestr(c->inbox, "\r\ncontent-length:");
    size_t length = field && field < end ? strtoul(field + 17, NULL, 10) : 0, head = end + 4 - c->inbox;
    if (c->in_len < head + length) return;
    c->in_len = 0; /* one request at a time, as HTTP/1.1 clients do it */
    request(fd, c->inbox, c->inbox + head);
}

static void on_term(int s) { (void)s; stop = 1; }

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    period_ns = atof(argv[1]) * 1e6; ttft_ns = atof(argv[2]) * 1e6; spread_ns = atof(argv[3]) * 1e6;
    burst = atoi(argv[4]);
    int size = atoi(argv[5]);
    for (int i = 0; i < size && i < 4000; i++) pad[i] = "the quick brown fox jumps over "[i % 31];
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGTERM, on_term);
    signal(SIGPIPE, SIG_IGN);
    int ls = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t alen = sizeof a;
    setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(ls, (void *)&a, sizeof a) || listen(ls, 16384)) return 1;
    getsockname(ls, (void *)&a, &alen);
    ep = epoll_create1(0);
    struct epoll_event le = {.events = EPOLLIN, .data.fd = ls}, got[1024];
    epoll_ctl(ep, EPOLL_CTL_ADD, ls, &le);
    printf("{\"port\": %d}\n", ntohs(a.sin_port));
    fflush(stdout);
    while (!stop) {
        struct timespec wait = {0, 100000000};
        if (heap_len) {
            int64_t ahead = heap[0].at - now_ns();
            wait.tv_nsec = ahead < 20000 ? 0 : ahead > 100000000 ? 100000000 : ahead; /* the last 20 us are spun */
        }
        int n = epoll_pwait2(ep, got, 1024, &wait, NULL);
        for (int i = 0; i < n; i++) {
            int fd = got[i].data.fd;
            if (fd == ls) {
                for (int k = 0; k < 256; k++) {
                    int s = accept4(ls, NULL, NULL, SOCK_NONBLOCK);
                    if (s < 0) break;
                    if (s >= MAX_FD) { close(s); continue; }
                    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    clients[s] = calloc(1, sizeof(client_t));
                    clients[s]->inbox = malloc(INBOX);
                    watch(s, 0, EPOLL_CTL_ADD);
                }
                continue;
            }
            if (clients[fd] && got[i].events & EPOLLOUT) flush_out(fd);
            if (clients[fd] && got[i].events & ~EPOLLOUT) readable(fd);
        }
        int64_t now = now_ns();
        while (heap_len && heap[0].at <= now) {
            due_t d = pop();
            if (clients[d.fd] && clients[d.fd]->serial == d.serial) emit(d.fd, d.at);
        }
    }
    printf("{\"requests\": %lu, \"events\": %lu, \"late_mean_ms\": %.3f, \"late_max_ms\": %.3f}\n", served, events,
        events ? late_sum / 1e6 / events : 0.0, late_max / 1e6);
    return 0;
}
