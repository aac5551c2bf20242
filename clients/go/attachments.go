package sessiond

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strconv"

	"google.golang.org/grpc/codes"

	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

// ChunkBytes is how much of an attachment travels in one call.
const ChunkBytes = 1 << 20

// Upload describes an attachment to be sent.
type Upload struct {
	SessionID string
	// Content is read twice: for its digest, then chunk by chunk.
	Content   io.ReadSeeker
	MediaType string
	Filename  string
	// UploadID names the upload until it is finished; empty: a random one. An upload that broke off goes
	// on where the daemon has it when it is given the same id.
	UploadID string
	// ChunkBytes is at most, and by default, the package's ChunkBytes.
	ChunkBytes int
}

// Upload sends an attachment and returns it; its ref goes into SendRequest. A chunk that met a daemon that
// was away is sent again.
func (c *Client) Upload(ctx context.Context, upload Upload) (*sessiondv1.Attachment, error) {
	digest := sha256.New()
	size, err := io.Copy(digest, upload.Content)
	if err != nil {
		return nil, err
	}
	id := upload.UploadID
	if id == "" {
		id = NewRequestID()
	}
	buffer := make([]byte, chunkSize(upload.ChunkBytes))
	for offset, stepsBack := int64(0), 0; ; {
		data, err := readAt(upload.Content, offset, buffer)
		if err != nil {
			return nil, err
		}
		request := &sessiondv1.WriteAttachmentRequest{
			SessionId: upload.SessionID, UploadId: id, Offset: offset, Data: data,
			MediaType: upload.MediaType, Filename: upload.Filename,
		}
		if request.Finish = offset+int64(len(data)) >= size; request.Finish {
			request.Sha256 = hex.EncodeToString(digest.Sum(nil))
		}
		response, err := c.writeChunk(ctx, request)
		committed, wrong := committedSize(err)
		switch {
		case wrong && committed != offset && committed <= size && stepsBack < maxAttempts:
			// What was sent before and never confirmed had arrived after all.
			offset = committed
			stepsBack++
		case err != nil:
			return nil, err
		case request.Finish:
			return response.GetAttachment(), nil
		default:
			offset = response.GetCommittedSize()
		}
	}
}

func (c *Client) writeChunk(ctx context.Context, request *sessiondv1.WriteAttachmentRequest) (*sessiondv1.WriteAttachmentResponse, error) {
	pace := newPace()
	for attempt := 1; ; attempt++ {
		response, err := c.Attachments.WriteAttachment(ctx, request)
		var failure *Error
		if !errors.As(err, &failure) || failure.Code != codes.Unavailable || attempt == maxAttempts {
			return response, err
		}
		if !pause(ctx, pace.next(failure.RetryAfter)) {
			return response, err
		}
	}
}

func chunkSize(wanted int) int {
	if wanted <= 0 || wanted > ChunkBytes {
		return ChunkBytes
	}
	return wanted
}

func readAt(content io.ReadSeeker, offset int64, buffer []byte) ([]byte, error) {
	if _, err := content.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	n, err := io.ReadFull(content, buffer)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	return buffer[:n], nil
}

// committedSize reads from a WRONG_OFFSET error where the daemon wants the upload to go on.
func committedSize(err error) (int64, bool) {
	if !HasReason(err, sessiondv1.ErrorReason_ERROR_REASON_WRONG_OFFSET) {
		return 0, false
	}
	var failure *Error
	errors.As(err, &failure)
	size, bad := strconv.ParseInt(failure.Metadata["committed_size"], 10, 64)
	return size, bad == nil
}

// Download writes an attachment to w and checks that it is what its ref says. It goes on where it was when
// the connection is cut. It returns how many bytes were written.
func (c *Client) Download(ctx context.Context, sessionID, ref string, w io.Writer) (int64, error) {
	digest := sha256.New()
	both := io.MultiWriter(w, digest)
	pace := newPace()
	var written int64
	for attempt := 1; ; attempt++ {
		before := written
		err := c.downloadFrom(ctx, sessionID, ref, &written, both)
		if written > before {
			attempt = 1
		}
		var failure *Error
		switch {
		case err == nil && hex.EncodeToString(digest.Sum(nil)) != ref:
			return written, newError(codes.DataLoss, sessiondv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH,
				"what the daemon sent is not attachment %s", ref)
		case err == nil:
			return written, nil
		case !errors.As(err, &failure) || failure.Code != codes.Unavailable || attempt == maxAttempts:
			return written, err
		case !pause(ctx, pace.next(failure.RetryAfter)):
			return written, err
		}
	}
}

func (c *Client) downloadFrom(ctx context.Context, sessionID, ref string, written *int64, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Attachments.ReadAttachment(ctx, &sessiondv1.ReadAttachmentRequest{
		SessionId: sessionID, Ref: ref, Offset: *written,
	})
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		n, err := w.Write(response.GetData())
		*written += int64(n)
		if err != nil {
			return err
		}
	}
}
