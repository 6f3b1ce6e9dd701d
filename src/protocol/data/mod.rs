//! What travels over a data connection: lists of operations towards the source, answers towards the
//! requester, and the reader that finds the frames in the stream.

pub(crate) mod answer;
pub(crate) mod ops;
pub(crate) mod reader;
