// Package examples holds programs that use pfd; its tests build them and run them
// against a pfd.
//
//   - putget writes into another process's memory, and reads from it.
//   - pingpong sends a message back and forth between two processes.
//   - http/server and http/client are programs of net/http whose connections are
//     streams.
//   - scatter spreads a matrix over several processes, with gather lists and a
//     completion queue.
//   - counter adds to a word that processes on two nodes share; phases has a lock and
//     a barrier.
//   - c/exanet.c, c/put.c, c/chat.c, c/echo.c and c/counter.c use libexanet.
package examples
