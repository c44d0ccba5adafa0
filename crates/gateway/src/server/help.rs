//! The answers of `HELP`.

use remora_resp::ReplyWriter;

/// A subcommand with its arguments, and what it does.
type Line = (&'static str, &'static str);

const HELP: &[(&str, &[Line])] = &[
    (
        "client",
        &[
            ("GETNAME", "Answers the name of this connection."),
            ("GETREDIR", "Answers that this connection does not track keys."),
            ("ID", "Answers the number of this connection."),
            ("INFO", "Describes this connection."),
            ("KILL <ip:port>", "Closes the connection that comes from this address."),
            ("KILL <option> <value> [<option> <value> [...]]", "Closes connections. The options are:"),
            ("  ID <id>", "The number of the connection."),
            ("  ADDR <ip:port>", "The address from which it comes."),
            ("  LADDR <ip:port>", "The address that it has reached."),
            ("  TYPE (NORMAL|MASTER|REPLICA|PUBSUB)", "The type of the connection."),
            ("  USER <username>", "The user of the connection."),
            ("  SKIPME (YES|NO)", "Whether to spare this connection. The default is YES."),
            ("LIST [TYPE <type> | ID <id> [...]]", "Describes connections, one a line."),
            ("NO-EVICT (ON|OFF)", "Has no effect: connections are not evicted."),
            ("NO-TOUCH (ON|OFF)", "Has no effect: keys do not remember when they were used."),
            ("PAUSE <milliseconds> [WRITE|ALL]", "Makes all commands wait, or those that write."),
            ("REPLY (ON|OFF|SKIP)", "Says which replies this connection gets."),
            ("SETINFO (LIB-NAME|LIB-VER) <value>", "Says which library the client uses."),
            ("SETNAME <name>", "Names this connection."),
            ("TRACKINGINFO", "Answers that this connection does not track keys."),
            ("UNBLOCK <id> [TIMEOUT|ERROR]", "Ends the wait of a blocking command."),
            ("UNPAUSE", "Ends a pause."),
        ],
    ),
    (
        "command",
        &[
            ("(no subcommand)", "Describes all commands."),
            ("COUNT", "Answers the number of commands."),
            ("GETKEYS <full-command>", "Answers the keys of a call."),
            ("GETKEYSANDFLAGS <full-command>", "Answers the keys of a call, with what it does to them."),
            ("INFO [<command-name> ...]", "Describes commands."),
            ("LIST [FILTERBY (MODULE|ACLCAT|PATTERN) <value>]", "Answers the names of commands."),
        ],
    ),
    (
        "config",
        &[
            ("GET <pattern> [<pattern> ...]", "Answers the parameters that match, with their values."),
            ("RESETSTAT", "Begins the statistics of INFO anew."),
            ("REWRITE", "Fails: a gateway has no configuration file."),
            ("SET <parameter> <value> [...]", "Sets parameters of this gateway."),
        ],
    ),
    (
        "memory",
        &[
            ("DOCTOR", "Says where to look for problems of memory."),
            ("MALLOC-STATS", "Answers that the allocator has no statistics."),
            ("STATS", "Answers how much memory this gateway uses."),
            ("USAGE <key> [SAMPLES <count>]", "Answers the bytes of a key with its value."),
        ],
    ),
    (
        "object",
        &[
            ("ENCODING <key>", "Answers the encoding that Redis would have chosen."),
            ("FREQ <key>", "Fails: keys have no frequency of access."),
            ("IDLETIME <key>", "Answers 0: keys do not remember when they were used."),
            ("REFCOUNT <key>", "Answers 1."),
        ],
    ),
    (
        "slowlog",
        &[
            ("GET [<count>]", "Answers the last entries: 10, or as many as asked for, or all with -1."),
            ("LEN", "Answers the number of entries."),
            ("RESET", "Deletes all entries."),
        ],
    ),
    (
        "latency",
        &[
            ("DOCTOR", "Says where latencies are."),
            ("GRAPH <event>", "Fails: there are no samples."),
            ("HISTOGRAM [<command> ...]", "Answers nothing: the metrics have the times of commands."),
            ("HISTORY <event>", "Answers nothing: there are no samples."),
            ("LATEST", "Answers nothing: there are no samples."),
            ("RESET [<event> ...]", "Answers 0."),
        ],
    ),
    (
        "acl",
        &[
            ("CAT [<category>]", "Answers all categories, or the commands of one."),
            ("GETUSER <username>", "Describes a user. There is one: default."),
            ("LIST", "Describes all users."),
            ("USERS", "Answers the names of all users."),
            ("WHOAMI", "Answers the user of this connection."),
        ],
    ),
    ("module", &[("LIST", "Answers nothing: a gateway loads no modules.")]),
    ("script", &[("FLUSH [ASYNC|SYNC]", "Answers OK: there are no scripts.")]),
    ("function", &[("FLUSH [ASYNC|SYNC]", "Answers OK: there are no functions.")]),
];

/// Answers `HELP` of a command that has subcommands.
pub(super) fn write(container: &str, reply: &mut ReplyWriter<'_>) {
    let lines = HELP.iter().find(|(name, _)| *name == container).map_or(&[][..], |(_, lines)| lines);
    reply.array(1 + 2 * (lines.len() + 1));
    let name = container.to_ascii_uppercase();
    reply.simple(format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for (usage, what) in lines.iter().chain(&[("HELP", "Answers this.")]) {
        reply.simple(usage);
        reply.simple(format!("    {what}"));
    }
}
