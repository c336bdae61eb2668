"""The header and the digest of a KV message, and the loops that copy KV and sum it up.

`docs/kv-checksum.md` defines the checksum and the header. `definition` holds the constants,
`codegen` and `portable` make the loops, `tilegen`, with `vectorgen`, makes those that convert KV to
its canonical form and back, `kernel` chooses between them and is what others call, and `header`
writes and verifies messages. All of `common.kv` and `common.engine` may import this package, which
imports nothing of `common.kv`. Start reading in `header`.
"""
