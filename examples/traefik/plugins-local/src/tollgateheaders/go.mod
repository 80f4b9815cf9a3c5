module tollgateheaders

go 1.22
