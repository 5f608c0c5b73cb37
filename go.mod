module github.com/exanet/pfd

go 1.26
