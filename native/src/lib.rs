//! What a member does for each byte and each command: requests and replies of clients, the partition of a key,
//! records of the log. Each function has a reference in Python, which is used where this module is missing, and
//! which decides whatever a function here leaves.

use pyo3::prelude::*;

mod partitions;
mod records;
mod resp;

#[pymodule]
mod stele_native {
    #[pymodule_export]
    use crate::partitions::{gets, partitions_of};
    #[pymodule_export]
    use crate::records::{put_record, split_put, split_record};
    #[pymodule_export]
    use crate::resp::{encode_replies, split};
}
