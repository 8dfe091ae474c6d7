/* Another module, that takes keys away in ways no client can. Written without the server's header, of which it needs little. */
#include <stddef.h>
#include <string.h>

typedef struct Context Context;
typedef struct String String;

static int (*CreateCommand)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
static int (*SetModuleAttribs)(Context *, const char *, int, int);
static String *(*CreateStringPrintf)(Context *, const char *, ...);
static void (*FreeString)(Context *, String *);
static const char *(*StringPtrLen)(const String *, size_t *);
static void *(*OpenKey)(Context *, String *, int);
static int (*DeleteKey)(void *);
static void (*CloseKey)(void *);
static int (*NotifyKeyspaceEvent)(Context *, int, const char *, String *);
static int (*SubscribeToKeyspaceEvents)(Context *, int, int (*)(Context *, int, const char *, String *));
static void *(*Call)(Context *, const char *, const char *, ...);
static void (*FreeCallReply)(void *);
static int (*ReplyWithLongLong)(Context *, long long);

enum { READ_AND_WRITE = 3, GENERIC = 1 << 2, STRING = 1 << 3 };

/* The key is made up of two words, so that no word of the command is its name. */
static String *key_of(Context *ctx, String **words) {
    return CreateStringPrintf(ctx, "%s%s", StringPtrLen(words[1], NULL), StringPtrLen(words[2], NULL));
}

/* OTHER.CALL: a DEL, called as a module calls a command. */
static int by_call(Context *ctx, String **words, int count) {
    if (count != 3) return 1;
    String *key = key_of(ctx, words);
    void *reply = Call(ctx, "DEL", "!s", key);
    if (reply) FreeCallReply(reply);
    FreeString(ctx, key);
    return ReplyWithLongLong(ctx, reply != NULL);
}

/* OTHER.DELETE: the key is deleted without any command, and its event is fired. */
static int by_hand(Context *ctx, String **words, int count) {
    if (count != 3) return 1;
    String *key = key_of(ctx, words);
    void *open = OpenKey(ctx, key, READ_AND_WRITE);
    int status = DeleteKey(open);
    CloseKey(open);
    NotifyKeyspaceEvent(ctx, GENERIC, "del", key);
    FreeString(ctx, key);
    return ReplyWithLongLong(ctx, status == 0);
}

/* Whenever the string `cause` is written, the key `effect` is deleted: within the write, whoever's it is. */
static int written(Context *ctx, int class, const char *event, String *key) {
    size_t len;
    const char *name = StringPtrLen(key, &len);
    (void)class;
    if (len == 5 && memcmp(name, "cause", 5) == 0 && strcmp(event, "set") == 0) {
        void *reply = Call(ctx, "DEL", "c", "effect");
        if (reply) FreeCallReply(reply);
    }
    return 0;
}

int RedisModule_OnLoad(Context *ctx, String **words, int count) {
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    (void)words, (void)count;
#define GET(name) if (get("RedisModule_" #name, (void *)&name)) return 1
    GET(CreateCommand); GET(SetModuleAttribs); GET(CreateStringPrintf); GET(FreeString); GET(StringPtrLen); GET(OpenKey);
    GET(DeleteKey); GET(CloseKey); GET(NotifyKeyspaceEvent); GET(SubscribeToKeyspaceEvents); GET(Call); GET(FreeCallReply);
    GET(ReplyWithLongLong);
    SetModuleAttribs(ctx, "other", 1, 1);
    if (CreateCommand(ctx, "other.call", by_call, "write", 0, 0, 0)) return 1;
    if (CreateCommand(ctx, "other.delete", by_hand, "write", 0, 0, 0)) return 1;
    return SubscribeToKeyspaceEvents(ctx, STRING, written);
}
