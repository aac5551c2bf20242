"""The echo agent: a scriptable stand-in for a coding agent. Standard library only.

It is a real child process. It speaks JSON lines on stdin and stdout, in a dialect of its own, and does
what the messages tell it (see README.md beside this file for the directives). It is started by path,
`python -I -S .../agent/__main__.py [--flag value]...`, because that starts fastest.

Flags (each also as an environment variable, ECHO_ and the name in capitals, e.g. ECHO_STATE_DIR):
  --session ID       name of the new conversation (default: "echo")
  --resume ID        go on with a conversation; unknown: a line on stderr and exit code 1
  --model, --mode, --effort, --title   settings to begin with
  --system-prompt T  remembered, told by `!prompt`
  --script FILE      what to play for the first, second, ... message (see README.md)
  --state-dir DIR    where conversations are kept (default: sessiond-echo-UID in the temporary folder)
  --read-log FILE    append one JSON line {session, id, again, text, pid} for each message read; `again`
                     is true when an earlier process of the same conversation had read it already
  --start-delay S    seconds before hello
  --rate N           deltas per second of plain text (default 0: flat out)
  --seed N           for random text and garbage (default 0)
  --version          print the version and exit

Lines to the agent (`request` is the host's own name for a request, echoed in what answers it):
  {"kind":"message","id","text","files":[{"name","media_type","path","size"}],"append":bool}
  {"kind":"unqueue","id"}                    take a message back        -> unqueued
  {"kind":"answer","id","answers":[],"note"} to a question
  {"kind":"interrupt"}                       end the turn at once       -> end
  {"kind":"set","request","model"|"mode"|"effort"|"title"}              -> settings or refused
  {"kind":"compact","request","instructions"}                           -> turn, compacted, end
  {"kind":"clear","request"}                                            -> cleared or refused
  {"kind":"command","request","text"}                                   -> turn, output, end or refused
  {"kind":"status"}                          say how things are         -> status
  {"kind":"quit"}                            end the turn, exit 0; so does the end of stdin

Lines from the agent; any of those that belong to a sub-agent carry `parent`, the id of its tool call:
  {"kind":"hello","version","session","resumed","model","mode","effort","title","options"}
  {"kind":"options","models","modes","efforts","commands"}, each a list of {"id","label","description"}
  {"kind":"turn","origin":"message"|"command"|"agent"}
  {"kind":"read","id"}                       it starts reading the message now
  {"kind":"dropped","id"}                    it will never read the message
  {"kind":"unqueued","id","outcome":"dropped"|"read"|"unknown"}
  {"kind":"text","delta","block","mark"} and {"kind":"think",...}
  {"kind":"retract","mark"}                  what came since that mark is void
  {"kind":"tool","id","name","input","title"}; {"kind":"tool_output","id","output","replace"};
  {"kind":"tool_end","id","output","outcome":"ok"|"error"|"denied"}
  {"kind":"file","data" (base64),"media_type","name","tool"}
  {"kind":"ask","id","prompt","header","options":[{"label","description","preview","kind"}],"multi",
   "text","secret","group","tool" (permission for that call),"expires" (Unix seconds)}
  {"kind":"ask_end","id","reason":"expired"|"elsewhere"}
  {"kind":"usage","input","cache_read","cache_write","output","context","window","cost"}
  {"kind":"compacting"}; {"kind":"compacted","pre","post","trigger"}; {"kind":"cleared","request"}
  {"kind":"plan","items":[{"text","state":"todo"|"doing"|"done"}]}
  {"kind":"retry","attempt","max","delay_ms","reason"}
  {"kind":"limit","limit","reached","used","resets" (Unix seconds)}
  {"kind":"settings","model"|"mode"|"effort"|"title","request"}; {"kind":"refused","request","message"}
  {"kind":"output","request","text"}; {"kind":"peer","id","sender","text"}
  {"kind":"notice","level":"debug"|"info"|"warning","text"}; {"kind":"error","reason","message"}
  {"kind":"bad_input","message","line"}      it could not understand a line; nothing else happened
  {"kind":"status","busy","questions","model","mode","effort","title"}
  {"kind":"end","outcome":"done"|"interrupted"|"failed","reason","message","ms","steps","request"}

A message that comes during a turn is read at the next boundary between two steps of the script; an
`append` message is read at the same place but starts and plays nothing.
"""
