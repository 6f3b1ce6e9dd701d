//! The four messages at the start of every connection, and the machines of both sides.
//!
//! | step | direction | message | length |
//! |---|---|---|---|
//! | 1 | to the source | Hello: who asks, for what, in which build | [`HELLO_LEN`](body::HELLO_LEN) |
//! | 2 | to the requester | Challenge: who answers, and its proof; or why not | [`CHALLENGE_LEN`](body::CHALLENGE_LEN) |
//! | 3 | to the source | Proof | [`PROOF_MESSAGE_LEN`](body::PROOF_MESSAGE_LEN) |
//! | 4 | to the requester | Welcome: number of the connection; or why not | [`WELCOME_LEN`](body::WELCOME_LEN) |
//!
//! Each step consumes the machine's state and gives the next one, so that a proof cannot be sent before
//! the other side's was verified, nor a frame before the last step. A machine that fails is gone: the
//! connection is closed. Deadlines, delays and counting belong to whoever holds the connection.

pub(crate) mod body;
pub(crate) mod error;
pub(crate) mod requester;
pub(crate) mod source;
#[cfg(test)]
mod tests;
